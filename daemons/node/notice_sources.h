// NoticeSources: asks the metadata services of clouds, each on a thread of its own, so that none of
// them holds up the node, however slow or broken it is.
//
// Which services, and where they are, is decided by FindNoticeSources, from what the user says and
// from files of this machine; no network is asked for that.
// Thread: constructor, destructor and Drained one; `tell` is called on the threads.
// Owns: the threads. The destructor ends a question under way, and joins them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autoscaler/notices/notice_watch.h"
#include "runtime/result.h"

namespace troupe::daemons {

struct NoticeSource {
  std::string cloud;  // "aws", "gcp", "azure".
  std::string url;    // "http://169.254.169.254".
};
struct FoundSources {
  std::vector<NoticeSource> clouds;
  bool slurm = false;
};
// `names`: of "aws", "gcp", "azure", "slurm", "auto" and "none". `url`: of all of them; empty: that
// of $TROUPE_METADATA_URL_AWS and the like, of $TROUPE_METADATA_URL, or the cloud's own.
[[nodiscard]] Result<FoundSources> FindNoticeSources(const std::vector<std::string>& names,
                                                     const std::string& url);

class NoticeSources {
 public:
  using Tell = std::function<void(const std::string& source, notices::NoticeChange change)>;

  NoticeSources(const std::vector<NoticeSource>& clouds, const Tell& tell);
  ~NoticeSources();
  NoticeSources(const NoticeSources&) = delete;
  NoticeSources& operator=(const NoticeSources&) = delete;
  // The node has nothing to lose any more: who takes the machine need not wait.
  void Drained();

 private:
  class Asker;
  std::vector<std::unique_ptr<Asker>> askers_;
};

}  // namespace troupe::daemons
