#include "daemons/autoscaler/account_text.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace troupe::daemons {
namespace {

using AccountOf = nlohmann::ordered_json;

std::string Money(double dollars) {
  char text[32];
  std::snprintf(text, sizeof text, dollars < 0.1 ? "$%.4f" : "$%.2f", dollars);
  return text;
}

std::string Number(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

double Rounded(double value) { return std::round(value * 1e6) / 1e6; }

AccountOf ObjectOf(const FleetAccounts::Sums& sums) {
  AccountOf json;
  for (size_t i = 0; i < kTimeUses; ++i) {
    const std::string use(TimeUseName(static_cast<TimeUse>(i)));
    json["worker_s"][use] = Rounded(sums.worker_s[i]);
    json["dollars"][use] = Rounded(sums.dollars[i]);
  }
  json["paid_worker_s"] = Rounded(sums.PaidSeconds());
  json["paid_dollars"] = Rounded(sums.Dollars());
  json["spot_worker_s"] = Rounded(sums.spot_worker_s);
  json["on_demand_dollars"] = nullptr;
  if (sums.on_demand_dollars) json["on_demand_dollars"] = Rounded(*sums.on_demand_dollars);
  json["preemptions"] = sums.preemptions;
  json["lost_dollars"] = Rounded(sums.lost_dollars);
  json["steps"] = sums.steps;
  json["samples"] = sums.samples;
  json["epochs"] = Rounded(sums.epochs);
  return json;
}

}  // namespace

std::string AccountLine(const FleetAccounts& accounts) {
  const FleetAccounts::Sums& sums = accounts.total();
  const double paid = sums.PaidSeconds();
  if (paid <= 0) return "no worker-second was paid";
  std::string line = Number("%.3g worker-hours, ", paid / 3600) + Money(sums.Dollars()) + ":";
  const char* comma = " ";
  for (size_t i = 0; i < kTimeUses; ++i) {
    if (sums.worker_s[i] <= 0) continue;
    line += comma + Number("%.3g", 100 * sums.worker_s[i] / paid) + " % " +
            std::string(TimeUseName(static_cast<TimeUse>(i)));
    comma = ", ";
  }
  if (sums.on_demand_dollars && sums.spot_worker_s > 0)
    line += "; on demand " + Money(*sums.on_demand_dollars);
  if (sums.preemptions > 0)
    line += "; " + std::to_string(sums.preemptions) +
            (sums.preemptions == 1 ? " preemption" : " preemptions") + ", which cost " +
            Money(sums.lost_dollars);
  const auto each = [&](double count, const std::string& what, const char* unit) {
    if (count <= 0) return;
    line += "; " + what;
    if (sums.Dollars() > 0) line += Number(", $%.3g", sums.Dollars() / count) + unit;
  };
  const auto thousands = [](uint64_t count) { return static_cast<double>(count) / 1000; };
  each(thousands(sums.steps), std::to_string(sums.steps) + " steps", " per thousand");
  each(thousands(sums.samples), std::to_string(sums.samples) + " samples", " per thousand");
  each(sums.epochs, Number("%.3g epochs", sums.epochs), " each");
  return line;
}

std::string AccountJson(const FleetAccounts& accounts) {
  AccountOf json = ObjectOf(accounts.total());
  json["pools"] = AccountOf::object();
  for (const auto& [pool, sums] : accounts.pools()) json["pools"][pool] = ObjectOf(sums);
  return json.dump();
}

}  // namespace troupe::daemons
