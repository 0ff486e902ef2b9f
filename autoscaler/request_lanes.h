// Threads that ask a supplier over HTTP, and the way back to who owns them.
//
// There are several lanes, which do not wait for each other: such as one in which machines are
// made, several at a time, one in which they are listed, and one in which they are ended.
// Thread: Post, Step and the destructor from one; what is posted runs on a thread of its lane, and
// what it returns is called by Step.
// Owns: its threads, which are started when there is something to ask; the destructor cancels what
// is under way and joins them.
// Limits: those of RequestLaneOptions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "autoscaler/exec_command.h"
#include "runtime/clock.h"
#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe {

// A way to send requests for one thread.
class HttpLink {
 public:
  virtual ~HttpLink() = default;
  virtual Result<HttpReply> Send(const HttpRequest& request) = 0;
  // As HttpClient::Stream.
  virtual Result<HttpReply> Stream(const HttpRequest& request, const HttpStream& stream);
  // From any thread: ends the request under way, and refuses those that follow.
  virtual void Cancel() = 0;
};
using HttpLinkMaker = std::function<std::unique_ptr<HttpLink>()>;
// Of libcurl. `ca_file`: for requests that bring none.
[[nodiscard]] HttpLinkMaker CurlLinks(std::string ca_file = "");

// What a task on a lane has of its thread.
struct RequestSeams {
  std::function<Result<HttpReply>(const HttpRequest&)> send;
  std::function<bool(Duration)> pause;  // False: nobody waits for the answer any more.
  std::function<bool()> wanted;         // False: throttling need not be waited out any more.
  const Clock* clock = nullptr;
  std::function<double()> random;  // From 0 to 1.
  std::function<Result<HttpReply>(const HttpRequest&, const HttpStream&)> stream = {};
};

// Before the `tries`-th repetition, from 1: twice as long each time from `least` up to `most`, and
// never the same for two.
[[nodiscard]] Duration RequestPause(int tries, Duration least, Duration most, double random);
// Of one request, where `limit` is that of all its repetitions and `left` is what there is of it: a
// hang is noticed early enough to ask once more.
[[nodiscard]] Duration RequestLimit(Duration limit, Duration left);

struct RequestLaneOptions {
  std::string name;             // Of whoever is asked, for people and threads.
  std::vector<size_t> threads;  // Of each lane, at most.
  size_t waiting_max = 1;       // In each.
};

class RequestLanes {
 public:
  using Finish = std::function<void()>;
  using Task = std::function<Finish(const RequestSeams&)>;

  RequestLanes(RequestLaneOptions options, HttpLinkMaker link, const Clock* clock);
  ~RequestLanes();
  RequestLanes(const RequestLanes&) = delete;
  RequestLanes& operator=(const RequestLanes&) = delete;

  // kBackpressure: too much waits. `wanted` (null: always): throttling is waited out while it is
  // true.
  Status Post(size_t lane, Task task, std::shared_ptr<const std::atomic<bool>> wanted = nullptr);
  // One of those has changed.
  void Wake();
  // Calls what has been finished. True if there was anything.
  bool Step();
  // On one of the threads: what the program prints. Nothing of that is in an error, but the end of
  // what it logs; it may be half a secret.
  Result<std::string> RunCommand(const ExecCommand& command);

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

  const RequestLaneOptions options_;
  const HttpLinkMaker link_;
  const Clock* const clock_;
  std::atomic<bool> has_finished_{false};
  std::mutex mu_;  // Of what follows.
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<Lane> lanes_;
  std::vector<Finish> finished_;
  std::set<HttpLink*> links_;
  std::vector<std::thread> threads_;
};

}  // namespace troupe
