// The clouds whose metadata services are understood, and what their parsers share.
//
// Thread: as MetadataDialect. Pure.
// Limits: kEventsMax events of one answer.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "autoscaler/notices/notice_watch.h"

namespace troupe::notices {

inline constexpr size_t kEventsMax = 16;
inline constexpr Duration kFarthest = seconds(366 * 24 * 3600);  // An event after now.

[[nodiscard]] std::unique_ptr<MetadataDialect> MakeAwsDialect();
[[nodiscard]] std::unique_ptr<MetadataDialect> MakeGcpDialect();
[[nodiscard]] std::unique_ptr<MetadataDialect> MakeAzureDialect();

[[nodiscard]] Reading Failed(std::string trouble);
// Of a status that is no answer to the question: 429 and 503 ask for patience.
[[nodiscard]] Reading FailedStatus(int status);
// A member of an object, if that is what it is and a text; else "".
[[nodiscard]] std::string TextAt(const nlohmann::json& json, const char* name);

}  // namespace troupe::notices
