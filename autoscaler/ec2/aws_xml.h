// XML as Amazon's services answer: elements with text, nothing else of it. The adapter of pugixml
// is aws_xml.cpp.
//
// Entities are the five predefined ones and numbers; a DOCTYPE is passed over, and defines none.
// Thread: plain values.
// Limits: kXmlDepthMax, kXmlElementsMax.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace troupe::ec2 {

inline constexpr size_t kXmlDepthMax = 32;
inline constexpr size_t kXmlElementsMax = 1'000'000;

struct XmlElement {
  std::string name;
  std::string text;  // Its own, not that of its children.
  std::vector<XmlElement> children = {};

  // The first child of that name; an empty element if there is none.
  [[nodiscard]] const XmlElement& Child(std::string_view child) const;
  [[nodiscard]] const std::string& TextOf(std::string_view child) const;
};

// The root. kCorrupt: it is no XML, not whole, too deep, or too much.
[[nodiscard]] Result<XmlElement> ParseXml(std::string_view text);

}  // namespace troupe::ec2
