// WhenAll and WhenAny: one future out of several.
// Thread: any.
#pragma once

#include <atomic>
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

}  // namespace troupe
