// Describing a class so that it can be an actor: a constexpr list of its constructor arguments and
// methods.
//
//   class Counter { public: explicit Counter(int start); int Add(int x); };
//   template <> struct troupe::ActorTraits<Counter> {
//     static constexpr const char* kName = "Counter";
//     using Constructor = troupe::Arguments<int>;
//     static constexpr auto kMethods = std::tuple{troupe::Method{"Add", &Counter::Add}};
//   };
//
// Arguments and results are any type the wire format knows (see runtime/wire.h); they travel by
// value. Calling what is not described, or with unsuitable arguments, does not compile and says so.
// Thread: any.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime/result.h"
#include "runtime/wire.h"

namespace troupe {

template <class T>
struct ActorTraits;  // Specialise it for your class, as above.

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

template <class F>
struct MethodTypes;
template <class T, class R, class... A>
struct MethodTypes<R (T::*)(A...)> {
  using Result = R;
  using Pack = actors::Pack<std::decay_t<A>...>;
  template <class... Given>
  static constexpr bool kAccepts = sizeof...(Given) == sizeof...(A) &&
                                   (std::is_convertible_v<Given, std::decay_t<A>> && ...);
};
template <class T, class R, class... A>
struct MethodTypes<R (T::*)(A...) const> : MethodTypes<R (T::*)(A...)> {};

// The wire name of a described method; empty if `function` is not in the list.
template <class T, class F>
std::string MethodName(F function) {
  std::string name;
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

// One living actor behind type erasure.
class Instance {
 public:
  virtual ~Instance() = default;
  // The encoded result; kNotFound for an unknown method, kCorrupt for unsuitable arguments,
  // kUserError if it threw.
  virtual Result<std::string> Invoke(const std::string& method, const std::string& arguments) = 0;
};

// Runs user code and turns what it throws into an Error: this is where the user's exceptions end.
template <class F>
Result<std::string> Guarded(const std::string& what, F&& body) {
  std::string problem;
  try {
    return body();
  } catch (const std::exception& e) {
    problem = e.what();
  } catch (...) {
    problem = "an exception that is not a std::exception";
  }
  return Error{ErrorCode::kUserError, what + " threw: " + problem};
}

template <DescribedActor T>
class TypedInstance final : public Instance {
 public:
  explicit TypedInstance(std::unique_ptr<T> object) : object_(std::move(object)) {}

  Result<std::string> Invoke(const std::string& method, const std::string& arguments) override {
    Result<std::string> result = Error{
        ErrorCode::kNotFound, std::string(ActorTraits<T>::kName) + " has no method " + method};
    std::apply(
        [&](const auto&... m) {
          (void)((m.name == method && (result = Call(m, arguments), true)) || ...);
        },
        ActorTraits<T>::kMethods);
    return result;
  }

 private:
  template <class F>
  Result<std::string> Call(const Method<F>& method, const std::string& arguments) {
    using Types = MethodTypes<F>;
    Result<typename Types::Pack> pack =
        wire::Decode<typename Types::Pack>(kArgumentsType, arguments);
    const std::string what = std::string(ActorTraits<T>::kName) + "::" + method.name;
    if (!pack.ok()) return pack.error().WithContext(what);
    return Guarded(what, [&]() -> Result<std::string> {
      Box<typename Types::Result> box;
      std::apply(
          [&](auto&... values) {
            if constexpr (std::is_void_v<typename Types::Result>) {
              (object_.get()->*method.function)(std::move(values)...);
            } else {
              box.value = (object_.get()->*method.function)(std::move(values)...);
            }
          },
          pack->values);
      return wire::Encode(kValueType, box);
    });
  }

  const std::unique_ptr<T> object_;
};

// What a process can host: types by name.
class TypeTable {
 public:
  using Factory = std::function<Result<std::unique_ptr<Instance>>(const std::string& arguments)>;

  template <DescribedActor... T>
  static TypeTable Of() {
    TypeTable table;
    (table.Add<T>(typename ActorTraits<T>::Constructor{}), ...);
    return table;
  }
  [[nodiscard]] Result<std::unique_ptr<Instance>> Make(const std::string& type,
                                                       const std::string& arguments) const {
    const auto it = factories_.find(type);
    if (it == factories_.end()) {
      return Error{ErrorCode::kNotFound, "this program does not describe an actor type " + type +
                                             "; list it in troupe::Init<...>"};
    }
    return it->second(arguments);
  }

 private:
  template <class T, class... A>
  void Add(Arguments<A...>) {
    factories_[ActorTraits<T>::kName] =
        [](const std::string& arguments) -> Result<std::unique_ptr<Instance>> {
      Result<Pack<A...>> pack = wire::Decode<Pack<A...>>(kArgumentsType, arguments);
      if (!pack.ok()) return pack.error();
      std::unique_ptr<T> object;
      Result<std::string> made = Guarded(
          std::string("the constructor of ") + ActorTraits<T>::kName, [&]() -> Result<std::string> {
            object = std::apply(
                [](auto&... values) { return std::make_unique<T>(std::move(values)...); },
                pack->values);
            return std::string();
          });
      if (!made.ok()) return made.error();
      return std::unique_ptr<Instance>(std::make_unique<TypedInstance<T>>(std::move(object)));
    };
  }
  std::map<std::string, Factory> factories_;
};

}  // namespace actors
}  // namespace troupe
