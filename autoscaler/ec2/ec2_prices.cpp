#include <algorithm>
#include <charconv>
#include <ctime>
#include <set>

#include "autoscaler/ec2/ec2_requests.h"

namespace troupe::ec2 {
namespace {

std::string IsoTime(int64_t unix_s) {
  const auto seconds = static_cast<time_t>(unix_s);
  std::tm parts{};
  char text[32] = "";
  if (::gmtime_r(&seconds, &parts) != nullptr)
    (void)std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

AwsParameters SpotPricesRequest(const std::set<std::string>& types, int64_t now_s,
                                const std::string& next) {
  AwsParameters request = {{"Action", "DescribeSpotPriceHistory"},
                           {"Version", "2016-11-15"},
                           {"ProductDescription.1", "Linux/UNIX"},
                           {"StartTime", IsoTime(now_s)}};
  size_t number = 0;
  for (const std::string& type : types)
    request.emplace_back("InstanceType." + std::to_string(++number), type);
  if (!next.empty()) request.emplace_back("NextToken", next);
  return request;
}

std::vector<Ec2SpotPrice> SpotPricesOf(const XmlElement& answer) {
  std::vector<Ec2SpotPrice> prices;
  for (const XmlElement& item : answer.Child("spotPriceHistorySet").children) {
    const std::string& text = item.TextOf("spotPrice");
    double price = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), price);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size() || !(price > 0)) continue;
    prices.push_back({item.TextOf("instanceType"), item.TextOf("availabilityZone"), price});
  }
  return prices;
}

std::map<std::string, double> OfferPrices(const Ec2Options& options,
                                          const std::vector<Ec2SpotPrice>& prices) {
  std::map<std::string, double> least;
  for (const auto& [name, offer] : options.offers) {
    if (!offer.spot) continue;
    std::set<std::string> seen;
    for (const Ec2SpotPrice& price : prices) {
      const bool here =
          offer.zones.empty() || std::ranges::find(offer.zones, price.zone) != offer.zones.end();
      const bool type = std::ranges::find(offer.instance_types, price.instance_type) !=
                        offer.instance_types.end();
      // An older one of the same place is over.
      if (!here || !type || !seen.insert(price.instance_type + " " + price.zone).second) continue;
      const auto [known, first] = least.try_emplace(name, price.per_hour);
      if (!first) known->second = std::min(known->second, price.per_hour);
    }
  }
  return least;
}

}  // namespace troupe::ec2
