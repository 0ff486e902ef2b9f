// One embedded cluster for all tests of a suite: starting one takes longer than most of them.
// Thread: the test's.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include <troupe/troupe.h>

namespace troupe::testing {

inline constexpr Duration kSoon = seconds(30);

template <class R>
std::string ErrorOf(const Result<R>& result) {
  return result.ok() ? "no error" : result.error().ToString();
}

// `Suite` makes it one cluster for each; it may have a static Resources() of its own.
template <class Suite>
class SharedCluster : public ::testing::Test {
 public:
  static std::map<std::string, double> Resources() { return {{"CPU", 16}}; }

 protected:
  static InitOptions Options() {
    InitOptions options;
    options.bin_dir = TROUPE_TEST_BIN_DIR;
    options.resources = Suite::Resources();
    return options;
  }
  static void SetUpTestSuite() {
    Result<Cluster> started = Init(Options());
    ASSERT_TRUE(started.ok()) << started.error().ToString();
    runtime_ = new Cluster(std::move(*started));
  }
  static void TearDownTestSuite() {
    delete runtime_;
    runtime_ = nullptr;
  }
  static Cluster& runtime() { return *runtime_; }

 private:
  static inline Cluster* runtime_ = nullptr;
};

// The value, or a failure of the test that says why there is none.
template <class R>
auto In(const Future<R>& future) {
  Result<typename Future<R>::Value> result = future.Get(kSoon);
  EXPECT_TRUE(result.ok()) << result.error().ToString();
  return result.ok() ? *result : typename Future<R>::Value{};
}

template <class T>
T Started(Result<T> actor) {
  EXPECT_TRUE(actor.ok()) << actor.error().ToString();
  return actor.ok() ? *actor : T();
}

}  // namespace troupe::testing
