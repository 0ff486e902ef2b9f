#include <troupe/training.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "actors/core/actor_group_protocol.h"
#include "daemons/client/process_groups.h"
#include "runtime/executor.h"
#include "runtime/thread.h"

namespace troupe {
namespace {

constexpr Duration kTrainingAskLimit = seconds(30);
// Training lasts as long as it lasts; the end of the actor ends its waits.
constexpr Duration kTrainingLimit = std::chrono::hours(24 * 365);

struct Found {
  std::shared_ptr<daemons::ProcessGroups> groups;
  std::string name;
};

Result<Found> Find(const std::string& group) {
  Found found{daemons::ProcessGroups::Here(), group};
  if (!found.groups) {
    return Error{ErrorCode::kInvalidArgument,
                 "only actors train in groups; call this in a method of one"};
  }
  const char* const own = std::getenv(actors::kActorGroupVariable);
  if (found.name.empty() && own != nullptr) found.name = own;
  if (!found.name.empty()) return found;
  return Error{ErrorCode::kInvalidArgument,
               "this actor is no member of a group of actors; name the group to train in"};
}

// One call at a time takes a member from epoch to epoch.
class Turn {
 public:
  explicit Turn(std::string name) : name_(std::move(name)) {
    std::lock_guard lock(mu_);
    mine_ = taken_.insert(name_).second;
  }
  ~Turn() {
    std::lock_guard lock(mu_);
    if (mine_) taken_.erase(name_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  [[nodiscard]] bool mine() const { return mine_; }

 private:
  static inline std::mutex mu_;
  static inline std::set<std::string> taken_;  // Names of groups.
  const std::string name_;
  bool mine_ = false;
};

}  // namespace

namespace internal {

// A stack of a thread: training libraries need more than a fiber has.
Status OnTrainingThread(const std::string& group,
                        const std::function<void(groups::GroupAgent&)>& body) {
  const Result<Found> found = Find(group);
  if (!found.ok()) return found.error();
  const Turn turn(found->name);
  if (!turn.mine()) {
    return Error{ErrorCode::kAlreadyExists, "another call of this actor trains in group \"" +
                                                found->name + "\"; wait for its end"};
  }
  Status entered;
  std::exception_ptr thrown;
  FiberEvent done;
  std::thread thread([&, done]() mutable {
    NameThisThread("training");
    const auto training = found->groups->Train(found->name, kTrainingAskLimit);
    if (!training.ok()) entered = training.error();
    try {
      if (training.ok()) body(*training->agent);
    } catch (...) {
      thrown = std::current_exception();
    }
    done.Set();
  });
  (void)done.WaitFor(kTrainingLimit);
  thread.join();
  if (thrown) std::rethrow_exception(thrown);
  return entered;
}

}  // namespace internal

Status LeaveTraining(const std::string& group) {
  const Result<Found> found = Find(group);
  if (!found.ok()) return found.error();
  return found->groups->Leave(found->name, kTrainingAskLimit);
}

}  // namespace troupe
