#include "daemons/node/notice_sources.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "runtime/http_client.h"
#include "runtime/process.h"

namespace troupe::daemons {
namespace {

const std::string kMetadataUrl = "http://169.254.169.254";
const std::string kDmi = "/sys/class/dmi/id/";

std::string DmiText(const std::string& name) {
  std::ifstream file(kDmi + name);
  std::string text;
  std::getline(file, text);
  return text;
}

notices::HostFacts Facts() {
  return {DmiText("sys_vendor"), DmiText("product_name"), DmiText("bios_vendor"),
          DmiText("chassis_asset_tag"), !Env("SLURM_JOB_ID").empty()};
}

std::string UrlOf(const std::string& cloud, const std::string& given) {
  if (!given.empty()) return given;
  std::string name = "TROUPE_METADATA_URL_" + cloud;
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const std::string& variable : {name, std::string("TROUPE_METADATA_URL")}) {
    if (const std::string url = Env(variable.c_str()); !url.empty()) return url;
  }
  return kMetadataUrl;
}

}  // namespace

Result<FoundSources> FindNoticeSources(const std::vector<std::string>& names,
                                       const std::string& url) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    if (name == "none") continue;
    if (name == "auto") {
      const std::vector<std::string> here = notices::DetectSources(Facts());
      all.insert(all.end(), here.begin(), here.end());
    } else if (name == "slurm" || notices::MakeDialect(name) != nullptr) {
      all.push_back(name);
    } else {
      return Error{ErrorCode::kInvalidArgument,
                   "--notices is one of aws, gcp, azure, slurm, auto, none; got '" + name + "'"};
    }
  }
  std::ranges::sort(all);
  const auto twice = std::ranges::unique(all);
  all.erase(twice.begin(), twice.end());
  FoundSources found;
  for (const std::string& name : all) {
    if (name == "slurm") {
      found.slurm = true;
      continue;
    }
    std::string at = UrlOf(name, url);
    while (at.ends_with('/')) at.pop_back();
    if (!at.starts_with("http://") && !at.starts_with("https://"))
      return Error{ErrorCode::kInvalidArgument,
                   "the URL of a metadata service begins with http://, got '" + at + "'"};
    found.clouds.push_back({name, std::move(at)});
  }
  return found;
}

class NoticeSources::Asker {
 public:
  Asker(const NoticeSource& source, Tell tell)
      : url_(source.url),
        tell_(std::move(tell)),
        watch_(notices::MakeDialect(source.cloud), std::random_device()()),
        thread_([this] { Run(); }) {}
  ~Asker() {
    {
      std::lock_guard lock(mu_);
      stopping_ = true;
    }
    wake_.notify_all();
    http_.Cancel();
    thread_.join();
  }
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;
  void Drained() {
    std::lock_guard lock(mu_);
    drained_ = true;
  }

 private:
  void Run() {
    while (Continue()) {
      if (std::optional<HttpRequest> request = watch_.Next(clock_.Now())) {
        request->url = url_ + request->url;
        const Result<HttpReply> reply = http_.Send(*request);
        if (!reply.ok() && reply.error().code == ErrorCode::kCancelled) return;
        watch_.OnReply({clock_.Now(), WallSeconds()}, reply);
      }
      for (notices::NoticeChange& change : watch_.TakeChanges()) {
        if (change.what == notices::NoticeChange::What::kTrouble)
          change.text = url_ + ": " + change.text;
        tell_(watch_.source(), std::move(change));
      }
    }
  }

  // False: it is to end. Waits until something is due.
  bool Continue() {
    const Duration wait = watch_.next_wake() - clock_.Now();
    std::unique_lock lock(mu_);
    (void)wake_.wait_for(lock, std::max(wait, Duration::zero()), [this] { return stopping_; });
    if (drained_) watch_.Drained();
    return !stopping_;
  }

  static int64_t WallSeconds() {
    return std::chrono::duration_cast<seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  const SteadyClock clock_;
  const std::string url_;
  const Tell tell_;
  notices::NoticeWatch watch_;  // The thread's.
  HttpClient http_;
  std::mutex mu_;
  std::condition_variable wake_;
  bool stopping_ = false;
  bool drained_ = false;
  std::thread thread_;  // Last.
};

NoticeSources::NoticeSources(const std::vector<NoticeSource>& clouds, const Tell& tell) {
  for (const NoticeSource& source : clouds)
    askers_.push_back(std::make_unique<Asker>(source, tell));
}

NoticeSources::~NoticeSources() = default;

void NoticeSources::Drained() {
  for (const auto& asker : askers_) asker->Drained();
}

}  // namespace troupe::daemons
