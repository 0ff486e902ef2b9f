#include "autoscaler/notices/internal/dialects.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::notices {

std::unique_ptr<MetadataDialect> MakeDialect(const std::string& source) {
  if (source == "aws") return MakeAwsDialect();
  if (source == "gcp") return MakeGcpDialect();
  if (source == "azure") return MakeAzureDialect();
  return nullptr;
}

Reading Failed(std::string trouble) { return {Reading::What::kFailed, {}, std::move(trouble)}; }

Reading FailedStatus(int status) {
  Reading reading = Failed("it answers with status " + std::to_string(status));
  if (status == 429 || status == 503) reading.what = Reading::What::kThrottled;
  if (status >= 300 && status < 400) reading.trouble += ", which is not followed";
  return reading;
}

std::string TextAt(const nlohmann::json& json, const char* name) {
  if (!json.is_object()) return "";
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace troupe::notices
