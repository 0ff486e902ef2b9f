// TROUPE_ACTOR and TROUPE_TASK; see actors/api/actor_type.h.
#pragma once

#include <concepts>
#include <tuple>
#include <type_traits>

#include "actors/host/type_table.h"

namespace troupe::actors {

// In the place of what is not one method, so that one line says so instead of a thousand.
struct NotOneMethod {
  template <class A>
  void Fields(A& a) {
    a();
  }
};

template <class C, class F>
constexpr auto MethodOf(const char* name, F method) {
  if constexpr (std::invocable<F, std::type_identity<C>>) {
    return Method{name, method(std::type_identity<C>{})};
  } else {
    return Method<void (C::*)(NotOneMethod)>{name, nullptr};
  }
}

template <class C, class... F>
constexpr bool AllAreMethods(const std::tuple<Method<F>...>&) {
  return (!std::same_as<F, void (C::*)(NotOneMethod)> && ...);
}

}  // namespace troupe::actors

#define TROUPE_INTERNAL_PARENS ()
#define TROUPE_INTERNAL_EXPAND(...) \
  TROUPE_INTERNAL_EXPAND3(          \
      TROUPE_INTERNAL_EXPAND3(TROUPE_INTERNAL_EXPAND3(TROUPE_INTERNAL_EXPAND3(__VA_ARGS__))))
#define TROUPE_INTERNAL_EXPAND3(...) \
  TROUPE_INTERNAL_EXPAND2(           \
      TROUPE_INTERNAL_EXPAND2(TROUPE_INTERNAL_EXPAND2(TROUPE_INTERNAL_EXPAND2(__VA_ARGS__))))
#define TROUPE_INTERNAL_EXPAND2(...) \
  TROUPE_INTERNAL_EXPAND1(           \
      TROUPE_INTERNAL_EXPAND1(TROUPE_INTERNAL_EXPAND1(TROUPE_INTERNAL_EXPAND1(__VA_ARGS__))))
#define TROUPE_INTERNAL_EXPAND1(...) __VA_ARGS__
// What gives &Class::name if that is one method, and cannot be called if it is not.
#define TROUPE_INTERNAL_METHOD(name) \
  []<class T>(std::type_identity<T>) -> decltype(&T::name) { return &T::name; }
// m1, m2, ... -> a Method of each; up to 256 of them.
#define TROUPE_INTERNAL_METHODS(Class, first, ...)                       \
  troupe::actors::MethodOf<Class>(#first, TROUPE_INTERNAL_METHOD(first)) \
      __VA_OPT__(, TROUPE_INTERNAL_METHODS_AGAIN TROUPE_INTERNAL_PARENS(Class, __VA_ARGS__))
#define TROUPE_INTERNAL_METHODS_AGAIN() TROUPE_INTERNAL_METHODS
#define TROUPE_INTERNAL_JOIN2(a, b) a##b
#define TROUPE_INTERNAL_JOIN(a, b) TROUPE_INTERNAL_JOIN2(a, b)

// TROUPE_ACTOR(Counter, (int), Add, Value): at global scope, once per program. The class's whole
// name is its name in the cluster: TROUPE_ACTOR(shop::Till, (), Sell).
#define TROUPE_ACTOR(Class, ConstructorArguments, ...)                                          \
  template <>                                                                                   \
  struct troupe::ActorTraits<Class> {                                                           \
    static constexpr const char* kName = #Class;                                                \
    using Constructor = troupe::actors::ArgumentsOf<void ConstructorArguments>::Type;           \
    static constexpr auto kMethods =                                                            \
        std::tuple{TROUPE_INTERNAL_EXPAND(TROUPE_INTERNAL_METHODS(Class, __VA_ARGS__))};        \
  };                                                                                            \
  static_assert(                                                                                \
      troupe::actors::AllAreMethods<Class>(troupe::ActorTraits<Class>::kMethods),               \
      "TROUPE_ACTOR(" #Class ", ...): of \"" #__VA_ARGS__                                       \
      "\" one is overloaded, a template, not "                                                  \
      "public or not there; give each method a name of its own, or describe overloads by hand " \
      "(actors/api/actor_type.h)");                                                             \
  [[maybe_unused]] static const troupe::actors::Registration TROUPE_INTERNAL_JOIN(              \
      troupe_registration_, __COUNTER__) {                                                      \
    [](troupe::actors::TypeTable& types) { types.AddActor<Class>(); }                           \
  }

// TROUPE_TASK(Square): at global scope, once per program and function.
#define TROUPE_TASK(Function)                                                      \
  template <>                                                                      \
  struct troupe::TaskTraits<&(Function)> {                                         \
    static constexpr const char* kName = #Function;                                \
  };                                                                               \
  [[maybe_unused]] static const troupe::actors::Registration TROUPE_INTERNAL_JOIN( \
      troupe_registration_, __COUNTER__) {                                         \
    [](troupe::actors::TypeTable& types) { types.AddTask<&(Function)>(); }         \
  }
