#include "autoscaler/gce_spec.h"

#include <string_view>

namespace troupe {
namespace {

constexpr std::string_view kGceHex = "0123456789abcdef";

bool IsGceLabelChar(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; }

}  // namespace

// Anything else, also an underscore, is one and two digits of hexadecimal.
std::string GceLabelOf(const std::string& text) {
  std::string label;
  for (const char c : text) {
    if (IsGceLabelChar(c)) {
      label += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    label += '_';
    label += kGceHex[byte >> 4];
    label += kGceHex[byte & 15];
  }
  return label;
}

std::string TextOfGceLabel(const std::string& label) {
  std::string text;
  for (size_t i = 0; i < label.size(); ++i) {
    const size_t high = i + 2 < label.size() ? kGceHex.find(label[i + 1]) : std::string_view::npos;
    const size_t low = i + 2 < label.size() ? kGceHex.find(label[i + 2]) : std::string_view::npos;
    if (label[i] != '_' || high == std::string_view::npos || low == std::string_view::npos) {
      text += label[i];
      continue;
    }
    text += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return text;
}

std::string GceRegionOf(const std::string& zone) { return zone.substr(0, zone.rfind('-')); }

}  // namespace troupe
