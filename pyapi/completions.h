// Completions: what the runtime tells Python, on a thread of Python's own: no thread of the runtime
// ever takes the GIL.
// Thread: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "runtime/clock.h"

namespace troupe::pyapi {

class CallState;  // pyapi/actor_calls.h

// Of ObjectRefs: nobody refers to these objects any more, and messages of these tokens are over.
struct RefsEnded {
  std::vector<uint64_t> numbers;
};
// A value has arrived that refers to objects and actors: Python holds what the table says as long
// as the value is here.
struct ValueArrived {
  uint64_t contents = 0;  // 0: nobody wants the value.
  std::string table;
};
struct ValueGone {
  uint64_t contents = 0;
};

// Others have found this object lost, which has stayed with its maker: `answer` gets its payload
// when it is computed again.
struct ComputeAgain {
  uint64_t number = 0;
  std::string lost;  // Its id there.
  std::shared_ptr<CallState> answer;
};

// What Python is told on a thread of its own: completed calls by their tokens, lines of actors,
// what becomes of refs. Of lines that it does not take, because whoever reads its output does not,
// kOutputBytesMax wait.
class Completions {
 public:
  using Item =
      std::variant<uint64_t, actors::ActorOutput, RefsEnded, ValueArrived, ValueGone, ComputeAgain>;
  static constexpr size_t kOutputBytesMax = 1 << 20;
  void Push(Item item);
  // All that is there; waits up to `limit` for the first.
  [[nodiscard]] std::deque<Item> Take(Duration limit);
  void Close();
  [[nodiscard]] bool closed() const;

 private:
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  size_t output_bytes_ = 0;  // Of those.
  uint64_t dropped_ = 0;     // Lines, not told yet.
  bool closed_ = false;
};

}  // namespace troupe::pyapi
