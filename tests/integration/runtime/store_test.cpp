// What every Store owes, for the store in memory and for Redis; then what only Redis can suffer.
#include "runtime/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/integration/runtime/redis_server.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using tests::RedisServer;

constexpr Duration kSlack = seconds(10);  // For a busy machine.
constexpr Duration kShortTtl = milliseconds(30);

struct Form {
  virtual ~Form() = default;
  virtual Store& store() = 0;
  // Returns when whatever was written with kShortTtl before is due.
  virtual void PassShortTtl() = 0;
};

struct MemoryForm final : Form {
  FakeClock clock;
  MemoryStore memory{&clock};
  Store& store() override { return memory; }
  void PassShortTtl() override { clock.Advance(kShortTtl); }
};

struct RedisForm final : Form {
  RedisServer server;
  std::unique_ptr<Store> redis = [this] {
    RedisOptions options;
    options.unix_socket = server.socket();
    options.key_prefix = "cluster:";
    options.command_timeout = kSlack;
    return MakeRedisStore(options);
  }();
  Store& store() override { return *redis; }
  void PassShortTtl() override {  // Expiry is the server's: a witness written now goes last.
    ASSERT_TRUE(redis->Put("witness", "1", kShortTtl + milliseconds(1)).ok());
    const Time deadline = SteadyClock().Now() + kSlack;
    while (redis->Get("witness")->has_value()) ASSERT_LT(SteadyClock().Now(), deadline);
  }
};

using MakeForm = std::unique_ptr<Form> (*)();
class StoreTest : public ::testing::TestWithParam<std::pair<const char*, MakeForm>> {
 protected:
  std::optional<std::string> Value(std::string_view key) {
    Result<std::optional<std::string>> got = store_.Get(key);
    EXPECT_TRUE(got.ok()) << got.error().message;
    return got.ok() ? *got : std::nullopt;
  }
  static ErrorCode Code(const Status& status) {
    return status.ok() ? ErrorCode::kOk : status.error().code;
  }
  template <class T>
  static ErrorCode Code(const Result<T>& result) {
    return result.ok() ? ErrorCode::kOk : result.error().code;
  }

  std::unique_ptr<Form> form_ = GetParam().second();
  Store& store_ = form_->store();
};

TEST_P(StoreTest, PutGetDelete) {
  EXPECT_EQ(Value("k"), std::nullopt);
  EXPECT_TRUE(store_.Put("k", "1").ok());
  EXPECT_EQ(Value("k"), "1");
  EXPECT_TRUE(store_.Put("k", "").ok());
  EXPECT_EQ(Value("k"), "");  // Empty is not absent.
  EXPECT_TRUE(store_.Delete("k").ok());
  EXPECT_EQ(Value("k"), std::nullopt);
  EXPECT_TRUE(store_.Delete("k").ok());
}

TEST_P(StoreTest, KeysAndValuesAreBinary) {
  const std::string bytes("\0a\r\n\xff*", 6);
  EXPECT_TRUE(store_.Put("k" + bytes, bytes).ok());
  EXPECT_EQ(Value("k" + bytes), bytes);
  EXPECT_TRUE(store_.CompareAndSet("k" + bytes, bytes, bytes + "2").ok());
  EXPECT_THAT(*store_.List("k"), ElementsAre(Pair("k" + bytes, bytes + "2")));
}

TEST_P(StoreTest, CompareAndSetWritesOnlyOverWhatWasExpected) {
  EXPECT_EQ(Code(store_.CompareAndSet("k", "0", "1")), ErrorCode::kConflict);
  EXPECT_EQ(Value("k"), std::nullopt);
  EXPECT_TRUE(store_.CompareAndSet("k", std::nullopt, "1").ok());
  EXPECT_EQ(Code(store_.CompareAndSet("k", std::nullopt, "2")), ErrorCode::kConflict);
  EXPECT_EQ(Code(store_.CompareAndSet("k", "0", "2")), ErrorCode::kConflict);
  EXPECT_EQ(Code(store_.CompareAndSet("k", "", "2")), ErrorCode::kConflict);
  EXPECT_EQ(Value("k"), "1");
  EXPECT_TRUE(store_.CompareAndSet("k", "1", "2").ok());
  EXPECT_EQ(Value("k"), "2");
}

TEST_P(StoreTest, ARepeatOfACompareAndSetSucceeds) {
  EXPECT_TRUE(store_.CompareAndSet("k", std::nullopt, "1").ok());
  EXPECT_TRUE(store_.CompareAndSet("k", std::nullopt, "1").ok());
  EXPECT_TRUE(store_.CompareAndSet("k", "1", "2").ok());
  EXPECT_TRUE(store_.CompareAndSet("k", "1", "2").ok());
  EXPECT_EQ(Value("k"), "2");
}

TEST_P(StoreTest, EmptyIsNotAbsentForCompareAndSet) {
  EXPECT_EQ(Code(store_.CompareAndSet("k", "", "1")), ErrorCode::kConflict);
  EXPECT_TRUE(store_.Put("k", "").ok());
  EXPECT_EQ(Code(store_.CompareAndSet("k", std::nullopt, "1")), ErrorCode::kConflict);
  EXPECT_TRUE(store_.CompareAndSet("k", "", "1").ok());
}

TEST_P(StoreTest, IncrementCountsFromZeroAndRefusesWhatIsNoInteger) {
  EXPECT_EQ(*store_.Increment("n"), 1);
  EXPECT_EQ(*store_.Increment("n", 41), 42);
  EXPECT_EQ(*store_.Increment("n", -50), -8);
  EXPECT_EQ(Value("n"), "-8");
  for (const std::string& text :
       {std::string("x"), std::string(""), std::string(" 5"), std::string("5 "),
        std::string("5\0x", 3), std::string("1.5"), std::string("9223372036854775808")}) {
    EXPECT_TRUE(store_.Put("n", text).ok());
    EXPECT_EQ(Code(store_.Increment("n")), ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(Value("n"), text);
  }
  EXPECT_TRUE(store_.Put("n", "9223372036854775807").ok());
  EXPECT_EQ(Code(store_.Increment("n")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Value("n"), "9223372036854775807");
}

TEST_P(StoreTest, WhatExpiresIsGoneForEveryCall) {
  for (const char* key : {"get", "list", "put", "cas", "count"}) {
    EXPECT_TRUE(store_.Put(key, "7", kShortTtl).ok());
  }
  EXPECT_TRUE(store_.Put("keep", "7", kSlack * 10).ok());
  EXPECT_TRUE(store_.CompareAndSet("set", std::nullopt, "7", kShortTtl).ok());
  EXPECT_TRUE(store_.Put("lost-lifetime", "7", kShortTtl).ok());
  EXPECT_TRUE(store_.Put("lost-lifetime", "8").ok());
  EXPECT_TRUE(store_.Put("cas-kept", "7", kShortTtl).ok());
  EXPECT_TRUE(store_.CompareAndSet("cas-kept", "7", "8").ok());
  EXPECT_TRUE(store_.Put("counted", "7", kShortTtl).ok());
  EXPECT_EQ(*store_.Increment("counted"), 8);  // Keeps its lifetime.
  form_->PassShortTtl();
  EXPECT_EQ(Value("get"), std::nullopt);
  EXPECT_EQ(Value("set"), std::nullopt);
  EXPECT_EQ(Value("counted"), std::nullopt);
  EXPECT_EQ(Value("keep"), "7");
  EXPECT_EQ(Value("lost-lifetime"), "8");
  EXPECT_EQ(Value("cas-kept"), "8");
  EXPECT_THAT(*store_.List("list"), IsEmpty());
  EXPECT_EQ(*store_.DeletePrefix("list"), 0U);
  EXPECT_EQ(Code(store_.CompareAndSet("cas", "7", "8")), ErrorCode::kConflict);
  EXPECT_TRUE(store_.CompareAndSet("put", std::nullopt, "8").ok());
  EXPECT_EQ(*store_.Increment("count"), 1);
}

TEST_P(StoreTest, ListAndDeletePrefixTakeThePrefixLiterally) {
  for (const char* key : {"a/1", "a/2", "a", "ab", "b", "a*", "a?x", "[a]", "\\a", "aZ"}) {
    EXPECT_TRUE(store_.Put(key, key).ok());
  }
  EXPECT_THAT(*store_.List("a/"), ElementsAre(Pair("a/1", "a/1"), Pair("a/2", "a/2")));
  EXPECT_THAT(*store_.List("a*"), ElementsAre(Pair("a*", "a*")));
  EXPECT_THAT(*store_.List("a?"), ElementsAre(Pair("a?x", "a?x")));
  EXPECT_THAT(*store_.List("[a"), ElementsAre(Pair("[a]", "[a]")));
  EXPECT_THAT(*store_.List("\\"), ElementsAre(Pair("\\a", "\\a")));
  EXPECT_THAT(*store_.List("none"), IsEmpty());
  EXPECT_EQ(*store_.DeletePrefix("a"), 7U);
  EXPECT_EQ(*store_.DeletePrefix("a"), 0U);
  EXPECT_EQ(Value("b"), "b");
  EXPECT_EQ(Value("[a]"), "[a]");
}

TEST_P(StoreTest, ListAndDeletePrefixAreCompleteOverManyKeys) {
  constexpr int kKeys = 1500;  // More than one batch.
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(store_.Put("many/" + std::to_string(i), std::to_string(i)).ok());
  }
  EXPECT_TRUE(store_.Put("other", "1").ok());
  const auto found = store_.List("many/");
  ASSERT_EQ(found->size(), static_cast<size_t>(kKeys));
  for (const auto& [key, value] : *found) EXPECT_EQ(key, "many/" + value);
  EXPECT_EQ(*store_.DeletePrefix("many/"), static_cast<size_t>(kKeys));
  EXPECT_THAT(*store_.List("many/"), IsEmpty());
  EXPECT_EQ(Value("other"), "1");
}

TEST_P(StoreTest, SizesAreLimited) {
  const std::string longest(kStoreKeyBytesMax, 'k');
  EXPECT_TRUE(store_.Put(longest, "v").ok());
  EXPECT_EQ(Value(longest), "v");
  for (const std::string& key : {std::string(), longest + "k"}) {
    const ErrorCode refused = ErrorCode::kInvalidArgument;
    EXPECT_EQ(Code(store_.Put(key, "v")), refused);
    EXPECT_EQ(Code(store_.Get(key)), refused);
    EXPECT_EQ(Code(store_.CompareAndSet(key, std::nullopt, "v")), refused);
    EXPECT_EQ(Code(store_.Increment(key)), refused);
    EXPECT_EQ(Code(store_.Delete(key)), refused);
    EXPECT_EQ(Code(store_.List(key)), refused);
    EXPECT_EQ(Code(store_.DeletePrefix(key)), refused);
  }
  const std::string biggest(kStoreValueBytesMax, 'v');
  EXPECT_TRUE(store_.Put("k", biggest).ok());
  EXPECT_EQ(Value("k"), biggest);
  EXPECT_EQ(Code(store_.Put("k", biggest + "v")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Code(store_.CompareAndSet("k", biggest, biggest + "v")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Value("k"), biggest);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, StoreTest,
    ::testing::Values(
        std::pair<const char*, MakeForm>{
            "Memory", []() -> std::unique_ptr<Form> { return std::make_unique<MemoryForm>(); }},
        std::pair<const char*, MakeForm>{
            "Redis", []() -> std::unique_ptr<Form> { return std::make_unique<RedisForm>(); }}),
    [](const auto& info) { return std::string(info.param.first); });

TEST(MemoryStoreTest, AnUnavailableStoreRefusesEveryCall) {
  FakeClock clock;
  MemoryStore store(&clock);
  EXPECT_TRUE(store.Put("k", "1", Store::kNoExpiry).ok());
  store.SetAvailable(false);
  EXPECT_EQ(store.Get("k").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(store.Put("k", "2", Store::kNoExpiry).error().code, ErrorCode::kUnavailable);
  store.SetAvailable(true);
  EXPECT_EQ(**store.Get("k"), "1");
}

class RedisStoreTest : public ::testing::Test {
 protected:
  static constexpr Duration kTimeout = milliseconds(200);

  RedisOptions Options(const RedisServer& server) {
    RedisOptions options;
    options.unix_socket = server.socket();
    options.connect_timeout = kTimeout;
    options.command_timeout = kTimeout;
    return options;
  }
  // The error of `call`, which must come within the store's deadline.
  static Error Failure(const std::function<Status()>& call) {
    const Time start = SteadyClock().Now();
    const Status status = call();
    EXPECT_LT(SteadyClock().Now() - start, 2 * kTimeout + kSlack);
    EXPECT_FALSE(status.ok());
    return status.ok() ? Error{} : status.error();
  }
};

TEST_F(RedisStoreTest, AKilledServerIsAnErrorAndARestartedOneWorks) {
  RedisServer server;
  const auto store = MakeRedisStore(Options(server));
  ASSERT_TRUE(store->Put("k", "1").ok());
  server.Kill();
  for (int i = 0; i < 3; ++i) {
    const Error error = Failure([&] { return store->Put("k", "2"); });
    EXPECT_EQ(error.code, ErrorCode::kUnavailable);
    EXPECT_THAT(error.message, HasSubstr(server.socket()));
  }
  server.Start();
  ASSERT_TRUE(store->Put("k", "3").ok());
  EXPECT_EQ(**store->Get("k"), "3");
}

TEST_F(RedisStoreTest, ARestartBetweenCallsCostsAtMostOneOfThem) {
  RedisServer server;
  const auto store = MakeRedisStore(Options(server));
  ASSERT_TRUE(store->Put("k", "1").ok());
  server.Kill();
  server.Start();
  const Status first = store->Put("k", "2");
  EXPECT_TRUE(first.ok() || first.error().code == ErrorCode::kUnavailable);
  EXPECT_TRUE(store->Put("k", "2").ok());
}

TEST_F(RedisStoreTest, AHungServerIsAnErrorWithinTheDeadline) {
  RedisServer server;
  const auto store = MakeRedisStore(Options(server));
  ASSERT_TRUE(store->Put("k", "1").ok());
  server.Signal(SIGSTOP);
  const Error error = Failure([&] { return store->Put("k", "2"); });
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("did not answer SET"));
  server.Signal(SIGCONT);
  // The lost reply of the first SET must not be taken for that of a later command.
  const Time deadline = SteadyClock().Now() + kSlack;
  while (!store->Put("n", "7").ok()) ASSERT_LT(SteadyClock().Now(), deadline);
  EXPECT_EQ(**store->Get("n"), "7");
}

TEST_F(RedisStoreTest, NoServerIsAnErrorThatNamesTheSocket) {
  RedisOptions options;
  options.unix_socket = "/nonexistent/redis.sock";
  const auto store = MakeRedisStore(options);
  const Error error = Failure([&] { return store->Put("k", "1"); });
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("cannot reach Redis at /nonexistent/redis.sock"));
}

TEST_F(RedisStoreTest, ThePasswordDecides) {
  RedisServer server("secret");
  RedisOptions options = Options(server);
  const auto none = MakeRedisStore(options);
  EXPECT_THAT(Failure([&] { return none->Put("k", "1"); }).message, HasSubstr("NOAUTH"));
  options.password = "guess";
  const auto wrong = MakeRedisStore(options);
  EXPECT_EQ(Failure([&] { return wrong->Put("k", "1"); }).code, ErrorCode::kPermissionDenied);
  options.password = "secret";
  const auto right = MakeRedisStore(options);
  EXPECT_TRUE(right->Put("k", "1").ok());
  EXPECT_EQ(**right->Get("k"), "1");
}

TEST_F(RedisStoreTest, ClustersOfOneServerDoNotSeeEachOther) {
  RedisServer server;
  RedisOptions options = Options(server);
  options.key_prefix = "one*:";
  const auto one = MakeRedisStore(options);
  options.key_prefix = "one2:";
  const auto two = MakeRedisStore(options);
  EXPECT_TRUE(one->Put("k", "1").ok());
  EXPECT_TRUE(two->Put("k", "2").ok());
  EXPECT_EQ(**one->Get("k"), "1");
  EXPECT_THAT(*one->List("k"), ElementsAre(Pair("k", "1")));
  EXPECT_EQ(*one->DeletePrefix("k"), 1U);
  EXPECT_EQ(**two->Get("k"), "2");
}

// Two coordinators of one group: only one may write the next epoch.
TEST_F(RedisStoreTest, OfTwoWritersOfOneEpochOneIsRefused) {
  RedisServer server;
  const auto one = MakeRedisStore(Options(server));
  const auto two = MakeRedisStore(Options(server));
  EXPECT_TRUE(one->CompareAndSet("epoch", std::nullopt, "7 one").ok());
  const Error error = Failure([&] { return two->CompareAndSet("epoch", std::nullopt, "7 two"); });
  EXPECT_EQ(error.code, ErrorCode::kConflict);
  EXPECT_EQ(**two->Get("epoch"), "7 one");
}

}  // namespace
}  // namespace troupe
