// Instance: one living actor behind type erasure, and its form for a described class.
//
// Here the user's exceptions end: what a method throws becomes an Error that says its type and, if
// it was due to another error, that one.
// Thread: an Instance is used by its actor's fibers, which share one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "actors/api/actor_type.h"
#include "runtime/wire.h"

namespace troupe::actors {

// One living actor behind type erasure.
class Instance {
 public:
  virtual ~Instance() = default;
  // The encoded result; kNotFound for an unknown method, kCorrupt for unsuitable arguments, else
  // what the method ended with. May wait on the fiber.
  virtual Result<std::string> Invoke(CallContext& context, const std::string& method,
                                     std::string arguments) = 0;
  // Whether a call runs as long as Invoke does. Else the instance tells the process's CpuLoan of
  // its calls itself, if they need a CPU at all.
  [[nodiscard]] virtual bool runs_in_invoke() const { return true; }
  // Whether others refer to what its methods have made; between calls. Its CPU is lent then.
  [[nodiscard]] virtual bool needed() const { return false; }
  [[nodiscard]] virtual bool saves() const { return false; }
  virtual Result<std::string> Save() { return std::string(); }
  virtual Status Restore(const std::string&) { return Status::Ok(); }
};

// Runs user code; what it throws comes back as an Error of `what`.
[[nodiscard]] Status Guarded(const std::string& what, const std::function<void()>& body);
// While it lives, handles that are decoded on this thread belong to `system`. Decoding never waits.
class DecodeScope {
 public:
  explicit DecodeScope(ActorSystem* system);
  ~DecodeScope();
  DecodeScope(const DecodeScope&) = delete;
  DecodeScope& operator=(const DecodeScope&) = delete;
  [[nodiscard]] static ActorSystem* Current();

 private:
  ActorSystem* const before_;
};

// Arguments and results as they travel. Bytes of other kinds never hold packed numbers.
template <class... A>
std::string EncodeArguments(const Pack<A...>& pack) {
  return wire::Encode(kArgumentsType, pack, wire::Numbers::kPacked);
}
template <class R>
std::string EncodeResult(const Box<R>& box) {
  return wire::Encode(kValueType, box, wire::Numbers::kPacked);
}

// Calls `function(values...)` and encodes what it yields.
template <class Types, class F>
Result<std::string> InvokeTyped(CallContext& context, const std::string& what,
                                const std::string& arguments, F&& function) {
  using Returned = typename Types::Returned;
  using Value = typename Types::Result;
  Result<typename Types::Pack> pack = [&] {
    const DecodeScope scope(&context.system());
    return wire::Decode<typename Types::Pack>(kArgumentsType, arguments);
  }();
  if (!pack.ok()) return pack.error().WithContext("the arguments of " + what);
  Box<Value> box;
  Status yielded;
  const auto take = [&](auto&& result) {
    if (!result.ok()) {
      yielded = result.error();
    } else if constexpr (!std::is_void_v<Value>) {
      box.value = std::move(*result);
    }
  };
  const auto run = [&](auto&... values) {
    const auto call = [&]() -> Returned {
      if constexpr (Types::kTakesContext) {
        return function(context, std::move(values)...);
      } else {
        return function(std::move(values)...);
      }
    };
    if constexpr (std::is_void_v<Returned>) {
      call();
    } else if constexpr (std::is_same_v<Returned, Value>) {
      box.value = call();
    } else if constexpr (requires(Returned r) { r.Get(); }) {
      take(call().Get());
    } else {
      take(call());
    }
  };
  const Status ran = Guarded(what, [&] { std::apply(run, pack->values); });
  if (!ran.ok()) return ran.error();
  if (!yielded.ok()) return yielded.error();
  return EncodeResult(box);
}

template <DescribedActor T>
class TypedInstance final : public Instance {
 public:
  explicit TypedInstance(std::unique_ptr<T> object) : object_(std::move(object)) {}

  Result<std::string> Invoke(CallContext& context, const std::string& method,
                             std::string arguments) override {
    Result<std::string> result = Error{
        ErrorCode::kNotFound, std::string(ActorTraits<T>::kName) + " has no method " + method +
                                  "; list it in TROUPE_ACTOR, and use one build everywhere"};
    const auto attempt = [&](const auto& m) {
      if (m.name != method) return false;
      using Types = MethodTypes<std::decay_t<decltype(m.function)>>;
      result = InvokeTyped<Types>(
          context, std::string(ActorTraits<T>::kName) + "::" + m.name, arguments,
          [&](auto&&... values) -> typename Types::Returned {
            return (object_.get()->*m.function)(std::forward<decltype(values)>(values)...);
          });
      return true;
    };
    std::apply([&](const auto&... m) { (void)(attempt(m) || ...); }, ActorTraits<T>::kMethods);
    return result;
  }
  [[nodiscard]] bool saves() const override { return SavingActor<T>; }
  Result<std::string> Save() override {
    std::string state;
    if constexpr (SavingActor<T>) {
      const Status saved = Guarded(std::string(ActorTraits<T>::kName) + "::Save",
                                   [&] { state = std::as_const(*object_).Save(); });
      if (!saved.ok()) return saved.error();
    }
    return state;
  }
  Status Restore(const std::string& state) override {
    if constexpr (SavingActor<T>) {
      return Guarded(std::string(ActorTraits<T>::kName) + "::Restore",
                     [&] { object_->Restore(state); });
    }
    return Status::Ok();
  }

 private:
  const std::unique_ptr<T> object_;
};

}  // namespace troupe::actors
