// WhenAll and WhenAny: one future out of several. Wait: which of several are complete.
// Thread: any.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "actors/api/future.h"

namespace troupe {

// All values in the order of the futures, or the first error, at once.
template <class R>
[[nodiscard]] auto WhenAll(const std::vector<Future<R>>& futures) {
  using Value = typename Future<R>::Value;
  struct Gathered {
    std::mutex mu;
    std::vector<std::optional<Value>> values;
    size_t left = 0;
  };
  Future<std::vector<Value>> all;
  if (futures.empty()) {
    all.Complete(std::vector<Value>{});
    return all;
  }
  auto gathered = std::make_shared<Gathered>();
  gathered->values.resize(futures.size());
  gathered->left = futures.size();
  for (size_t i = 0; i < futures.size(); ++i) {
    futures[i].OnComplete([all, gathered, i](const Result<Value>& result) {
      if (!result.ok()) return all.Complete(result.error());
      {
        std::lock_guard lock(gathered->mu);
        gathered->values[i] = *result;
        if (--gathered->left > 0) return;
      }
      std::vector<Value> values;
      for (auto& value : gathered->values) values.push_back(std::move(*value));
      all.Complete(std::move(values));
    });
  }
  return all;
}

// Which future is complete first, and its value. An error counts only if all have failed: then it
// is the last one.
template <class R>
[[nodiscard]] auto WhenAny(const std::vector<Future<R>>& futures) {
  using Value = typename Future<R>::Value;
  Future<std::pair<size_t, Value>> any;
  if (futures.empty()) {
    any.Complete(Error{ErrorCode::kInvalidArgument, "WhenAny of no futures never completes"});
    return any;
  }
  auto left = std::make_shared<std::atomic<size_t>>(futures.size());
  for (size_t i = 0; i < futures.size(); ++i) {
    futures[i].OnComplete([any, left, i](const Result<Value>& result) {
      const bool last = left->fetch_sub(1) == 1;
      if (result.ok()) return any.Complete(std::pair<size_t, Value>(i, *result));
      if (last) any.Complete(result.error());
    });
  }
  return any;
}

struct Waited {
  std::vector<size_t> ready;    // Places of those that are complete, with a value or an error,
  std::vector<size_t> pending;  // and of those that are not, both in the order of the futures.
};

// Waits until `count` of the futures are complete, no longer than `limit`: that fewer are then is
// no error. kInvalidArgument: there are fewer futures, or `count` is 0; kCancelled: the call that
// waits was.
template <class R>
[[nodiscard]] Result<Waited> Wait(const std::vector<Future<R>>& futures, size_t count,
                                  Duration limit) {
  using Value = typename Future<R>::Value;
  if (count == 0 || count > futures.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "Wait for " + std::to_string(count) + " of " + std::to_string(futures.size()) +
                     " futures: the number must be from 1 to that of the futures"};
  }
  FiberEvent enough;
  const auto missing = std::make_shared<std::atomic<int64_t>>(static_cast<int64_t>(count));
  std::vector<uint64_t> subscriptions;
  std::shared_ptr<actors::PendingCall> call;
  for (const Future<R>& future : futures) {
    subscriptions.push_back(future.Subscribe([missing, enough](const Result<Value>&) mutable {
      if (missing->fetch_sub(1) == 1) enough.Set();
    }));
    if (!call) call = future.call();
  }
  const Status waited =
      missing->load() <= 0 ? Status::Ok() : actors::AwaitEvent(enough, limit, call.get());
  Waited found;
  for (size_t i = 0; i < futures.size(); ++i) {
    if (subscriptions[i] != 0) futures[i].Unsubscribe(subscriptions[i]);
    (futures[i].Ready() ? found.ready : found.pending).push_back(i);
  }
  if (!waited.ok() && waited.error().code == ErrorCode::kCancelled) return waited.error();
  return found;
}

}  // namespace troupe
