// Threads that ask EC2, and the way back to who owns them.
//
// There are three kinds of work, which do not wait for each other: machines are made, several at a
// time; listed; and ended.
// Thread: Post, Step and the destructor from one; what is posted runs on a thread of the lanes, and
// what it returns is called by Step.
// Owns: its threads; the destructor cancels what is under way and joins them.
// Limits: those of each lane.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "autoscaler/ec2/aws_identity.h"
#include "autoscaler/ec2/ec2_api.h"
#include "autoscaler/ec2/ec2_requests.h"
#include "runtime/clock.h"
#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::ec2 {

// A way to send requests for one thread.
class AwsLink {
 public:
  virtual ~AwsLink() = default;
  virtual Result<HttpReply> Send(const HttpRequest& request) = 0;
  // From any thread: ends the request under way, and refuses those that follow.
  virtual void Cancel() = 0;
};

enum class Ec2Work : uint8_t { kCreate, kList, kEnd };

class Ec2Lanes {
 public:
  using Finish = std::function<void()>;
  using Task = std::function<Finish(Ec2Api&)>;

  struct Limits {
    size_t create_threads = 1;
    size_t waiting_max = 1;
  };
  // `options` outlive it.
  Ec2Lanes(const Ec2Options* options, AwsWorld world,
           std::function<std::unique_ptr<AwsLink>()> link, const Clock* clock, Limits limits);
  ~Ec2Lanes();
  Ec2Lanes(const Ec2Lanes&) = delete;
  Ec2Lanes& operator=(const Ec2Lanes&) = delete;

  // kBackpressure: too much waits. `wanted` (null: always): throttling is waited out while it is
  // true.
  Status Post(Ec2Work work, Task task, std::shared_ptr<const std::atomic<bool>> wanted = nullptr);
  // One of those has changed.
  void Wake();
  // Calls what has been finished. True if there was anything.
  bool Step();

 private:
  struct Posted {
    Task task;
    std::shared_ptr<const std::atomic<bool>> wanted;
    [[nodiscard]] bool IsWanted() const { return wanted == nullptr || wanted->load(); }
  };
  struct Lane {
    size_t threads_max = 1;
    size_t threads = 0;
    size_t idle = 0;
    std::deque<Posted> waiting;
  };

  void Run(Lane& lane);
  bool Pause(Duration span, const Posted& of);
  Result<std::string> RunCommand(const std::string& command);
  AwsWorld WithRun(AwsWorld world);

  const Ec2Options* const options_;
  const std::function<std::unique_ptr<AwsLink>()> link_;
  const Clock* const clock_;
  const Limits limits_;
  AwsIdentity identity_;
  std::atomic<bool> has_finished_{false};
  std::mutex mu_;  // Of what follows.
  std::condition_variable wake_;
  bool stopping_ = false;
  std::array<Lane, 3> lanes_;
  std::vector<Finish> finished_;
  std::set<AwsLink*> links_;
  std::vector<std::thread> threads_;
};

}  // namespace troupe::ec2
