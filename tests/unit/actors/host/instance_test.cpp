// What describes classes and functions, and what becomes of what they throw.
#include "actors/host/instance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/api/actor_macros.h"
#include "actors/api/dynamic_handle.h"
#include "actors/api/handle.h"

namespace shop {

class Till {
 public:
  explicit Till(int start, const std::string& owner) : sum_(start), owner_(owner) {
    if (start < 0) throw std::invalid_argument("start is negative");
  }
  int Add(int x) { return sum_ += x; }
  [[nodiscard]] int Sum() const noexcept { return sum_; }
  troupe::Result<int> Checked(int x) {
    if (x > 9) return troupe::Error{troupe::ErrorCode::kResourceExhausted, "too much"};
    return x;
  }
  troupe::Status Nothing(bool ok) {
    if (ok) return troupe::Status::Ok();
    return troupe::Error{troupe::ErrorCode::kDrained, "closed"};
  }
  troupe::Future<int> Later(int x) {
    troupe::Future<int> future;
    future.Complete(x + 1);
    return future;
  }
  void Throw(const std::string& what) { throw std::runtime_error(what); }
  void ThrowOddly() { throw 7; }
  void ThrowError() {
    throw troupe::ActorError({troupe::ErrorCode::kPeerGone, "the other is gone"});
  }
  void ThrowNested() {
    try {
      throw std::out_of_range("deep");
    } catch (const std::exception&) {
      std::throw_with_nested(std::logic_error("shallow"));
    }
  }
  std::string Who(troupe::CallContext& context, const std::string& greeting) {
    return greeting + " " + context.caller() + " from " + owner_;
  }
  [[nodiscard]] std::string Save() const { return std::to_string(sum_); }
  void Restore(const std::string& state) { sum_ = std::stoi(state); }

 private:
  int sum_;
  std::string owner_;
};

int Square(int x) {
  if (x > 1000) throw std::overflow_error("too large");
  return x * x;
}

// As many methods as anybody will list.
class Wide {
 public:
#define TROUPE_TEST_TEN(n)       \
  int M##n##0() { return n##0; } \
  int M##n##1() { return n##1; } \
  int M##n##2() { return n##2; } \
  int M##n##3() { return n##3; } \
  int M##n##4() { return n##4; }
  TROUPE_TEST_TEN(1)
  TROUPE_TEST_TEN(2)
  TROUPE_TEST_TEN(3)
  TROUPE_TEST_TEN(4)
  TROUPE_TEST_TEN(5)
  TROUPE_TEST_TEN(6)
  TROUPE_TEST_TEN(7)
  TROUPE_TEST_TEN(8)
#undef TROUPE_TEST_TEN
};

}  // namespace shop

TROUPE_ACTOR(shop::Till, (int, const std::string&), Add, Sum, Checked, Nothing, Later, Throw,
             ThrowOddly, ThrowError, ThrowNested, Who);
TROUPE_TASK(shop::Square);
TROUPE_ACTOR(shop::Wide, (), M10, M11, M12, M13, M14, M20, M21, M22, M23, M24, M30, M31, M32, M33,
             M34, M40, M41, M42, M43, M44, M50, M51, M52, M53, M54, M60, M61, M62, M63, M64, M70,
             M71, M72, M73, M74, M80, M81, M82, M83, M84);

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

template <class... A>
std::string Packed(A... values) {
  return EncodeArguments(Pack<A...>{{values...}});
}

class InstanceTest : public ::testing::Test {
 protected:
  Result<std::string> Invoke(const std::string& method, const std::string& arguments) {
    // No method here asks for the system: its place may be anything.
    CallContext context(reinterpret_cast<ActorSystem*>(this), &self_, "me", Time::Never(),
                        std::make_shared<RunningCall>());
    return instance_->Invoke(context, method, arguments);
  }
  template <class R>
  static R Value(const Result<std::string>& result) {
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.ok() ? wire::Decode<Box<R>>(kValueType, *result)->value : R{};
  }

  const TypeTable types_ = RegisteredTypes();
  const ActorAddress self_{"a", 1, "shop::Till", {}, false};
  std::unique_ptr<Instance> instance_ =
      types_.Make(nullptr, "shop::Till", Packed(10, std::string("ann"))).value();
};

TEST_F(InstanceTest, MethodsOfAllKindsYieldTheirValues) {
  EXPECT_EQ(Value<int>(Invoke("Add", Packed(5))), 15);
  EXPECT_EQ(Value<int>(Invoke("Sum", Packed())), 15);
  EXPECT_EQ(Value<int>(Invoke("Checked", Packed(3))), 3);
  EXPECT_EQ(Value<int>(Invoke("Later", Packed(3))), 4);
  EXPECT_TRUE(Invoke("Nothing", Packed(true)).ok());
  EXPECT_EQ(Value<std::string>(Invoke("Who", Packed(std::string("hello")))), "hello me from ann");
}

TEST_F(InstanceTest, ErrorsThatAreReturnedKeepTheirCodes) {
  EXPECT_EQ(Invoke("Checked", Packed(10)).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Invoke("Nothing", Packed(false)).error().message, "closed");
}

TEST_F(InstanceTest, WhatIsThrownIsAnErrorWithItsTypeAndCause) {
  const Error plain = Invoke("Throw", Packed(std::string("no paper"))).error();
  EXPECT_EQ(plain.code, ErrorCode::kUserError);
  EXPECT_EQ(plain.message, "shop::Till::Throw threw: no paper");
  EXPECT_EQ(plain.origin->type, "std::runtime_error");
  EXPECT_THAT(Invoke("ThrowOddly", Packed()).error().message, HasSubstr("not a std::exception"));
  const Error nested = Invoke("ThrowNested", Packed()).error();
  EXPECT_THAT(nested.origin->type, HasSubstr("logic_error"));
  ASSERT_NE(nested.cause(), nullptr);
  EXPECT_EQ(nested.cause()->message, "deep");
  EXPECT_EQ(nested.cause()->origin->type, "std::out_of_range");
  const Error passed = Invoke("ThrowError", Packed()).error();
  EXPECT_EQ(passed.code, ErrorCode::kPeerGone);
  EXPECT_EQ(passed.cause()->message, "the other is gone");
  EXPECT_EQ(Value<int>(Invoke("Sum", Packed())), 10) << "it lives on";
}

TEST_F(InstanceTest, UnknownMethodsAndUnsuitableArgumentsAreErrors) {
  EXPECT_EQ(Invoke("Nowhere", Packed()).error().code, ErrorCode::kNotFound);
  for (const std::string& arguments :
       {Packed(), Packed(std::string("x")), Packed(1, 2), std::string("junk"), std::string()}) {
    const Error unsuitable = Invoke("Add", arguments).error();
    EXPECT_EQ(unsuitable.code, ErrorCode::kCorrupt);
    EXPECT_THAT(unsuitable.message, HasSubstr("the arguments of shop::Till::Add"));
  }
}

TEST_F(InstanceTest, AConstructorMayRefuse) {
  const auto made = types_.Make(nullptr, "shop::Till", Packed(-1, std::string("x")));
  EXPECT_EQ(made.error().code, ErrorCode::kUserError);
  EXPECT_THAT(made.error().message, HasSubstr("start is negative"));
  EXPECT_EQ(types_.Make(nullptr, "shop::Till", Packed(1)).error().code, ErrorCode::kCorrupt);
  const auto unknown = types_.Make(nullptr, "shop::Shelf", Packed());
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("shop::Till"));
}

TEST_F(InstanceTest, StateIsSavedAndWhatCannotBeRestoredIsAnError) {
  EXPECT_TRUE(instance_->saves());
  (void)Invoke("Add", Packed(5));
  EXPECT_EQ(*instance_->Save(), "15");
  EXPECT_TRUE(instance_->Restore("40").ok());
  EXPECT_EQ(Value<int>(Invoke("Sum", Packed())), 40);
  EXPECT_EQ(instance_->Restore("forty").error().code, ErrorCode::kUserError);
  EXPECT_FALSE(types_.Make(nullptr, "shop::Wide", Packed()).value()->saves());
}

TEST_F(InstanceTest, ManyMethodsCanBeListed) {
  instance_ = types_.Make(nullptr, "shop::Wide", Packed()).value();
  EXPECT_EQ(std::tuple_size_v<decltype(ActorTraits<shop::Wide>::kMethods)>, 40u);
  EXPECT_EQ(Value<int>(Invoke("M10", Packed())), 10);
  EXPECT_EQ(Value<int>(Invoke("M84", Packed())), 84);
}

TEST_F(InstanceTest, TasksAreTheMethodsOfARunner) {
  instance_ = types_.Make(nullptr, kTaskRunner, "").value();
  EXPECT_EQ(Value<int>(Invoke("shop::Square", Packed(7))), 49);
  EXPECT_EQ(Invoke("shop::Square", Packed(1001)).error().origin->type, "std::overflow_error");
  EXPECT_EQ(Invoke("shop::Cube", Packed(1)).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Invoke("shop::Square", "junk").error().code, ErrorCode::kCorrupt);
}

// ---- handles ----

class FakeRef final : public ActorRef {
 public:
  [[nodiscard]] ActorAddress address() const override { return {"x", 1, "shop::Till", {}, false}; }
  uint64_t Call(std::string method, std::string bytes, const CallOptions&, CallDone done) override {
    called.push_back(method);
    arguments = std::move(bytes);
    waiting = std::move(done);
    return 5;
  }
  void Cancel(uint64_t call, const Cancellation&) override { cancelled = call; }
  uint64_t Monitor(OnDown) override { return ++monitors; }
  void Demonitor(uint64_t monitor) override { demonitored.push_back(monitor); }
  void Kill(bool, const std::string&, CallDone done) override { done(std::string()); }

  std::vector<std::string> called;
  std::string arguments;
  CallDone waiting;
  uint64_t cancelled = 0;
  uint64_t monitors = 0;
  std::vector<uint64_t> demonitored;
};

using Handle = ActorHandle<shop::Till>;

TEST(ActorHandleTest, ADefaultOneRefersToNothing) {
  const Handle none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.id(), "");
  EXPECT_EQ(none.Call(&shop::Till::Sum).Get().error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(none.Kill().error().code, ErrorCode::kInvalidArgument);
  std::string why;
  (void)none.Monitor([&](const Error& e) { why = e.message; });
  EXPECT_EQ(why, "this handle refers to no actor");
}

TEST(ActorHandleTest, CopiesAndMovesReferToTheSameAndHoldItOnceEach) {
  auto ref = std::make_shared<FakeRef>();
  Handle handle(nullptr, ref);
  EXPECT_EQ(ref.use_count(), 2);
  Handle copy = handle;
  EXPECT_EQ(ref.use_count(), 3);
  Handle moved = std::move(copy);
  EXPECT_EQ(ref.use_count(), 3);
  EXPECT_FALSE(copy);  // NOLINT(bugprone-use-after-move): what is left of it is what is tested.
  Handle& alias = moved;
  moved = alias;
  moved = std::move(alias);
  EXPECT_EQ(moved.id(), "x");
  EXPECT_EQ(ref.use_count(), 3);
  handle = Handle();
  moved = handle;
  EXPECT_EQ(ref.use_count(), 1);
}

TEST(ActorHandleTest, ACallCanBeCancelledAndAMethodThatIsNotListedIsRefused) {
  const auto ref = std::make_shared<FakeRef>();
  const Handle handle(nullptr, ref);
  const Future<int> sum = handle.Call(&shop::Till::Add, 5);
  EXPECT_THAT(ref->called, ::testing::ElementsAre("Add"));
  sum.Cancel();
  EXPECT_EQ(ref->cancelled, 5u);
  EXPECT_EQ(sum.Get().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(handle.Call(&shop::Till::Save).Get().error().code, ErrorCode::kInvalidArgument);
}

TEST(LaterCallTest, IsMadeWhenItsFuturesAreComplete) {
  const auto ref = std::make_shared<FakeRef>();
  const Handle handle(nullptr, ref);
  const Future<int> argument;
  const Future<int> sum = handle.Call(&shop::Till::Add, argument);
  EXPECT_TRUE(ref->called.empty());
  EXPECT_EQ(sum.Get(Duration::zero()).error().message,
            "no result yet: the futures among the call's arguments are not complete");
  argument.Complete(5);
  EXPECT_THAT(ref->called, ::testing::ElementsAre("Add"));
  EXPECT_EQ(ref->arguments, Packed(5));
  ref->waiting(EncodeResult(Box<int>{8}));
  EXPECT_EQ(sum.Get().value(), 8);
}

TEST(LaterCallTest, AnErrorOfAFutureIsTheErrorOfTheCall) {
  const auto ref = std::make_shared<FakeRef>();
  const Handle handle(nullptr, ref);
  const Future<int> argument;
  const Future<int> sum = handle.Call(&shop::Till::Add, argument);
  argument.Complete(Error{ErrorCode::kUserError, "no number",
                          std::make_shared<const ErrorOrigin>(
                              ErrorOrigin{"std::out_of_range", "Shop 7", "n1", "", nullptr})});
  EXPECT_EQ(sum.Get().error().ToString(),
            "user_error: argument 1 of the call: no number [std::out_of_range in Shop 7 on node "
            "n1]");
  EXPECT_TRUE(ref->called.empty());
}

TEST(LaterCallTest, ACancellationReachesItAtEveryStage) {
  const auto ref = std::make_shared<FakeRef>();
  const Handle handle(nullptr, ref);
  const Future<int> argument;
  const Future<int> early = handle.Call(&shop::Till::Add, argument);
  const Future<int> late = handle.Call(&shop::Till::Checked, argument);
  early.Cancel();
  EXPECT_EQ(early.Get().error().code, ErrorCode::kCancelled);
  argument.Complete(5);
  EXPECT_THAT(ref->called, ::testing::ElementsAre("Checked"));
  late.Cancel();
  EXPECT_EQ(ref->cancelled, 5U);
}

// Copies are made at once: what it refers to may be gone when it is made.
TEST(LaterCallTest, OtherArgumentsAreKeptAsTheyWere) {
  const auto ref = std::make_shared<FakeRef>();
  const DynamicHandle handle(nullptr, ref);
  const Future<std::vector<int>> argument;
  {
    const std::string text(100, 'x');
    (void)handle.CallNamed<int>("take", text.c_str(), argument, "literal");
  }
  argument.Complete(std::vector<int>{1, 2});
  EXPECT_EQ(ref->arguments,
            Packed(std::string(100, 'x'), std::vector<int>{1, 2}, std::string("literal")));
}

TEST(ActorHandleTest, AMonitorIsUndoneOnce) {
  const auto ref = std::make_shared<FakeRef>();
  const Handle handle(nullptr, ref);
  {
    MonitorGuard guard = handle.Monitor([](const Error&) {});
    MonitorGuard moved = std::move(guard);
    MonitorGuard& alias = moved;
    moved = std::move(alias);
    EXPECT_TRUE(ref->demonitored.empty());
    moved = handle.Monitor([](const Error&) {});
    EXPECT_THAT(ref->demonitored, ::testing::ElementsAre(1));
  }
  EXPECT_THAT(ref->demonitored, ::testing::ElementsAre(1, 2));
}

}  // namespace
}  // namespace troupe::actors
