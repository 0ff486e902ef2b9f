// A transport with what it has received and dropped, to be waited for.
// Thread: any.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport.h"
#include "tests/support/soon.h"

namespace troupe::tests {

class Inbox {
 public:
  using Frames = std::vector<std::pair<std::string, std::string>>;

  void Attach(Transport& transport) {
    transport.SetHandler([this](const std::string& from, std::string frame) {
      std::lock_guard lock(mu_);
      frames_.emplace_back(from, std::move(frame));
      changed_.notify_all();
    });
    transport.SetDropHandler([this](const std::string& to) {
      std::lock_guard lock(mu_);
      dropped_.push_back(to);
      changed_.notify_all();
    });
  }
  // The frames, once there are `count`.
  Frames Wait(size_t count) {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, kSoon, [&] { return frames_.size() >= count; }))
        << frames_.size() << " of " << count << " frames";
    return frames_;
  }
  size_t Count() {
    std::lock_guard lock(mu_);
    return frames_.size();
  }
  std::vector<std::string> WaitDropped(size_t count) {
    std::unique_lock lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, kSoon, [&] { return dropped_.size() >= count; }));
    return dropped_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  Frames frames_;
  std::vector<std::string> dropped_;
};

struct Node {
  Inbox inbox;
  std::unique_ptr<Transport> transport;
};

inline std::unique_ptr<Node> MakeNode(const ZmqTransportOptions& options) {
  auto node = std::make_unique<Node>();
  Result<std::unique_ptr<Transport>> made = MakeZmqTransport(options);
  EXPECT_TRUE(made.ok());
  node->transport = std::move(*made);
  node->inbox.Attach(*node->transport);
  return node;
}

}  // namespace troupe::tests
