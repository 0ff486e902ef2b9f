// Describing a class so that it can be an actor, and a function so that it can be a task.
//
//   class Counter { public: explicit Counter(int start); int Add(int x); int Value() const; };
//   TROUPE_ACTOR(Counter, (int), Add, Value);     // At global scope: name, constructor, methods.
//   int Square(int x);
//   TROUPE_TASK(Square);
//
// The macro writes what can also be written by hand, for overloads and for other names:
//
//   template <> struct troupe::ActorTraits<Counter> {
//     static constexpr const char* kName = "Counter";
//     using Constructor = troupe::Arguments<int>;
//     static constexpr auto kMethods = std::tuple{troupe::Method{"Add", &Counter::Add}};
//   };
//   troupe::Init<Counter>();
//
// Arguments and results are any type the wire format knows (see runtime/wire.h), ActorHandle<T>
// among them; they travel by value, a std::vector of numbers in one piece. In the place of an
// argument a call takes a Future of it, too. A method may return R, Result<R>, Status or Future<R>,
// and take a CallContext& before its arguments. A class with `std::string Save() const` and
// `void Restore(const std::string&)` keeps its state over restarts. Calling what is not described,
// or with unsuitable arguments, does not compile and says so.
// Thread: any.
#pragma once

#include <concepts>
#include <string>
#include <tuple>
#include <type_traits>

#include "actors/api/context.h"
#include "actors/api/future.h"
#include "runtime/result.h"

namespace troupe {

template <class T>
struct ActorTraits;  // Written by TROUPE_ACTOR, or by hand.

template <auto F>
struct TaskTraits;  // Written by TROUPE_TASK.

template <class... A>
struct Arguments {};

template <class F>
struct Method {
  const char* name;
  F function;
};
template <class F>
Method(const char*, F) -> Method<F>;

namespace actors {

inline constexpr uint8_t kArgumentsType = 71;
inline constexpr uint8_t kValueType = 72;

template <class T>
concept DescribedActor = requires {
  ActorTraits<T>::kName;
  typename ActorTraits<T>::Constructor;
  ActorTraits<T>::kMethods;
};

template <class Traits>
concept NamedTraits = requires {
  Traits::kName;
};
template <auto F>
inline constexpr bool kDescribedTask = NamedTraits<TaskTraits<F>>;

template <class T>
concept SavingActor = requires(const T& saved, T& restored, const std::string& state) {
  { saved.Save() } -> std::convertible_to<std::string>;
  restored.Restore(state);
};

template <class... A>
struct Pack {
  std::tuple<A...> values;
  template <class Archive>
  void Fields(Archive& archive) {
    std::apply([&](auto&... v) { archive(v...); }, values);
  }
};
template <class R>
struct Box {
  R value{};
  template <class Archive>
  void Fields(Archive& archive) {
    archive(value);
  }
};
template <>
struct Box<void> {
  template <class Archive>
  void Fields(Archive& archive) {
    archive();
  }
};

// What a call yields in the end: R of R, Result<R>, Status and Future<R>.
template <class T>
struct Yielded : Unwrapped<T> {};
template <class T>
struct Yielded<Future<T>> {
  using Type = T;
};

// What stands for an argument in the end: T of T and of Future<T>.
template <class T>
struct Given {
  using Type = T;
  static constexpr bool kLater = false;
};
template <class R>
struct Given<Future<R>> {
  using Type = typename Future<R>::Value;
  static constexpr bool kLater = true;
};
template <class A>
inline constexpr bool kIsFuture = Given<std::decay_t<A>>::kLater;
// A as it was given, unless it is a future.
template <class A>
using ValueOf = std::conditional_t<kIsFuture<A>, typename Given<std::decay_t<A>>::Type, A>;

template <class R, bool kContext, class... A>
struct Signature {
  using Returned = R;
  using Result = typename Yielded<R>::Type;
  using Pack = actors::Pack<std::decay_t<A>...>;
  static constexpr bool kTakesContext = kContext;
  template <class... G>
  static consteval bool Accepts() {
    if constexpr (sizeof...(G) == sizeof...(A)) {
      return (std::is_convertible_v<ValueOf<G>, std::decay_t<A>> && ...);
    }
    return false;
  }
};
template <class F>
struct FunctionTypes;
template <class R, class... A>
struct FunctionTypes<R (*)(A...)> : Signature<R, false, A...> {};
template <class R, class... A>
struct FunctionTypes<R (*)(CallContext&, A...)> : Signature<R, true, A...> {};
template <class F>
struct MethodTypes;
template <class T, class R, class... A>
struct MethodTypes<R (T::*)(A...)> : FunctionTypes<R (*)(A...)> {};
template <class T, class R, class... A>
struct MethodTypes<R (T::*)(A...) const> : FunctionTypes<R (*)(A...)> {};
template <class T, class R, class... A>
struct MethodTypes<R (T::*)(A...) noexcept> : FunctionTypes<R (*)(A...)> {};
template <class T, class R, class... A>
struct MethodTypes<R (T::*)(A...) const noexcept> : FunctionTypes<R (*)(A...)> {};

// Of the result of a call of a method. Named where calls are declared, so that their bodies are
// compiled only when the whole program text is known: a method that is defined inside its class
// may call others of its type, which is described further down.
template <class F>
struct CallFutureOf {
  using Type = Future<void>;  // It is no method; the call says so.
};
template <class F>
requires std::is_member_function_pointer_v<F>
struct CallFutureOf<F> {
  using Type = Future<typename MethodTypes<F>::Result>;
};
template <class F>
using CallFuture = typename CallFutureOf<F>::Type;

// void(A...) -> Arguments<A...>, for the macro.
template <class F>
struct ArgumentsOf;
template <class... A>
struct ArgumentsOf<void(A...)> {
  using Type = Arguments<std::decay_t<A>...>;
};

// The wire name of a described method; null if `function` is not in the list.
template <class T, class F>
constexpr const char* MethodName(F function) {
  const char* name = nullptr;
  std::apply(
      [&](const auto&... method) {
        const auto look = [&](const auto& m) {
          if constexpr (std::is_same_v<std::decay_t<decltype(m.function)>, F>) {
            if (m.function == function) name = m.name;
          }
        };
        (look(method), ...);
      },
      ActorTraits<T>::kMethods);
  return name;
}

}  // namespace actors
}  // namespace troupe
