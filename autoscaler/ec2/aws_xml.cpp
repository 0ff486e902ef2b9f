// Adapter of pugixml: the only file that includes it.
#include "autoscaler/ec2/aws_xml.h"

#include <pugixml.hpp>

namespace troupe::ec2 {
namespace {

// False: too deep, or too many. The depth is bounded, and with it the recursion.
// NOLINTNEXTLINE(misc-no-recursion)
bool Copy(const pugi::xml_node& from, size_t depth, size_t& left, XmlElement& to) {
  if (depth > kXmlDepthMax || left == 0) return false;
  --left;
  to.name = from.name();
  for (const pugi::xml_node& child : from.children()) {
    if (child.type() == pugi::node_pcdata || child.type() == pugi::node_cdata) {
      to.text += child.value();
    } else if (child.type() == pugi::node_element) {
      if (!Copy(child, depth + 1, left, to.children.emplace_back())) return false;
    }
  }
  return true;
}

}  // namespace

const XmlElement& XmlElement::Child(std::string_view child) const {
  static const XmlElement kNone;
  for (const XmlElement& candidate : children) {
    if (candidate.name == child) return candidate;
  }
  return kNone;
}

const std::string& XmlElement::TextOf(std::string_view child) const { return Child(child).text; }

Result<XmlElement> ParseXml(std::string_view text) {
  pugi::xml_document document;
  const pugi::xml_parse_result parsed =
      document.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
  if (!parsed)
    return Error{ErrorCode::kCorrupt, "its answer is no XML: " + std::string(parsed.description()) +
                                          " at byte " + std::to_string(parsed.offset)};
  XmlElement root;
  size_t left = kXmlElementsMax;
  if (!Copy(document.document_element(), 1, left, root))
    return Error{ErrorCode::kCorrupt, "its answer is XML with too many elements, or too deep"};
  return root;
}

}  // namespace troupe::ec2
