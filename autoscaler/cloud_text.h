// Texts as the interfaces of clouds have them: bytes, times, and what may be shown to people.
//
// Pure.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/result.h"

namespace troupe {

[[nodiscard]] std::string EncodeBase64(std::string_view bytes);
// kCorrupt: it is none. Ends of lines are passed over.
[[nodiscard]] Result<std::string> DecodeBase64(std::string_view text);
// Seconds since 1970 of "2026-01-02T03:04:05Z", with a fraction or an offset if need be.
[[nodiscard]] std::optional<int64_t> ParseCloudTime(std::string_view text);
// "Action=RunInstances&Version=...", percent-encoded.
[[nodiscard]] std::string FormBody(
    const std::vector<std::pair<std::string, std::string>>& parameters);
// 16 digits, the same in every release; not for what somebody may want to forge.
[[nodiscard]] std::string HexHash(std::string_view text);
// On one line, at most `most` bytes, for a message.
[[nodiscard]] std::string Printable(std::string_view text, size_t most);
// The end of what was printed, in the same way: "..." and at most `most` bytes.
[[nodiscard]] std::string LastOf(std::string_view printed, size_t most);

}  // namespace troupe
