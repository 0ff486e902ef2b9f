// TROUPE_ACTOR and TROUPE_TASK; see actors/actor_type.h.
#pragma once

#include "actors/type_table.h"

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
// m1, m2, ... -> Method{"m1", &Class::m1}, Method{"m2", &Class::m2}, ...; up to 256 of them.
#define TROUPE_INTERNAL_METHODS(Class, first, ...)  \
  troupe::Method{#first, &Class::first} __VA_OPT__( \
      , TROUPE_INTERNAL_METHODS_AGAIN TROUPE_INTERNAL_PARENS(Class, __VA_ARGS__))
#define TROUPE_INTERNAL_METHODS_AGAIN() TROUPE_INTERNAL_METHODS
#define TROUPE_INTERNAL_JOIN2(a, b) a##b
#define TROUPE_INTERNAL_JOIN(a, b) TROUPE_INTERNAL_JOIN2(a, b)

// TROUPE_ACTOR(Counter, (int), Add, Value): at global scope, once per program. The class's whole
// name is its name in the cluster: TROUPE_ACTOR(shop::Till, (), Sell).
#define TROUPE_ACTOR(Class, ConstructorArguments, ...)                                   \
  template <>                                                                            \
  struct troupe::ActorTraits<Class> {                                                    \
    static constexpr const char* kName = #Class;                                         \
    using Constructor = troupe::actors::ArgumentsOf<void ConstructorArguments>::Type;    \
    static constexpr auto kMethods =                                                     \
        std::tuple{TROUPE_INTERNAL_EXPAND(TROUPE_INTERNAL_METHODS(Class, __VA_ARGS__))}; \
  };                                                                                     \
  [[maybe_unused]] static const troupe::actors::Registration TROUPE_INTERNAL_JOIN(       \
      troupe_registration_, __COUNTER__) {                                               \
    [](troupe::actors::TypeTable& types) { types.AddActor<Class>(); }                    \
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
