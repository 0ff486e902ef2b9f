// An API of a test's own: it keeps pods, and fails as it is told.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/kubernetes/kube_machines.h"

namespace troupe::kubernetes::tests {

// Thread: any.
class StubKube {
 public:
  using StubJson = nlohmann::json;
  enum class Fault { kThrottle, kLost, kCut, kServer, kForbidden, kUnauthorized };

  // Of the next requests whose method and end of their path are those, such as "POST pods".
  void Fail(const std::string& what, Fault fault);
  // Changes a pod, and tells its watchers.
  void Update(const std::string& name, const StubJson& patch);
  void Run(const std::string& name);
  void Say(const std::string& line);
  // Whether nobody can be reached; watches are cut.
  void Down(bool down);
  void Remove(const std::string& name);
  // Until so many of these were asked, in any place.
  bool Await(const std::string& what, size_t count);
  // Until the watchers have taken all that was told, after a list that has the rest.
  bool AwaitHeard();
  size_t Count(const std::string& what);
  std::vector<HttpRequest> asked();

  Result<HttpReply> Answer(const HttpRequest& request);
  Result<HttpReply> Stream(const HttpRequest& request, const HttpStream& stream,
                           const bool& cancelled);
  void Cancel(bool& cancelled);

 private:
  static std::string What(const HttpRequest& request);
  size_t CountOf(const std::string& what) const;
  static HttpReply Reply(int status, std::string body) { return {status, {}, std::move(body)}; }
  static HttpReply Status(int code, const std::string& reason, const std::string& message);
  void Tell(const std::string& type, const std::string& name);
  HttpReply Do(const HttpRequest& request);
  HttpReply Create(StubJson pod);

  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, std::deque<Fault>> faults_;
  std::map<std::string, StubJson> pods_;
  std::deque<std::string> lines_;  // Of the watch of pods.
  std::vector<HttpRequest> asked_;
  bool watching_ = false;
  bool saying_ = false;
  bool down_ = false;
  int version_ = 100;
};

class StubLink final : public HttpLink {
 public:
  explicit StubLink(StubKube* kube) : kube_(kube) {}
  Result<HttpReply> Send(const HttpRequest& request) override { return kube_->Answer(request); }
  Result<HttpReply> Stream(const HttpRequest& request, const HttpStream& stream) override {
    return kube_->Stream(request, stream, cancelled_);
  }
  void Cancel() override { kube_->Cancel(cancelled_); }

 private:
  StubKube* const kube_;
  bool cancelled_ = false;
};

}  // namespace troupe::kubernetes::tests
