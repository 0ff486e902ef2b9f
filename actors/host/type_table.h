// TypeTable: what a process can host: actor types and tasks by name.
//
// Thread: a table is constant once made.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "actors/host/instance.h"

namespace troupe::actors {

// The actor type whose methods are the program's tasks.
inline constexpr const char* kTaskRunner = "troupe.Tasks";

class TypeTable {
 public:
  using Factory = std::function<Result<std::unique_ptr<Instance>>(ActorSystem* system,
                                                                  const std::string& arguments)>;
  using Task = std::function<Result<std::string>(CallContext& context, std::string arguments)>;

  template <DescribedActor T>
  void AddActor() {
    AddConstructor<T>(typename ActorTraits<T>::Constructor{});
  }
  template <auto F>
  void AddTask() {
    using Types = FunctionTypes<decltype(F)>;
    const std::string name = TaskTraits<F>::kName;
    tasks_[name] = [name](CallContext& context, const std::string& arguments) {
      return InvokeTyped<Types>(context, name, arguments,
                                [](auto&&... values) -> typename Types::Returned {
                                  return F(std::forward<decltype(values)>(values)...);
                                });
    };
  }
  void AddFactory(const std::string& type, Factory factory) {
    factories_[type] = std::move(factory);
  }
  // The names of the actor types and of the tasks, for people: "actors A, B; tasks none".
  [[nodiscard]] std::string Describe() const;
  [[nodiscard]] Result<std::unique_ptr<Instance>> Make(ActorSystem* system, const std::string& type,
                                                       const std::string& arguments) const;

 private:
  template <class T, class... A>
  void AddConstructor(Arguments<A...>) {
    static_assert(std::is_constructible_v<T, A...>,
                  "the class has no constructor that takes the arguments it is described with");
    AddFactory(
        ActorTraits<T>::kName,
        [](ActorSystem* system, const std::string& arguments) -> Result<std::unique_ptr<Instance>> {
          const DecodeScope scope(system);
          Result<Pack<A...>> pack = wire::Decode<Pack<A...>>(kArgumentsType, arguments);
          const std::string what = std::string("the constructor of ") + ActorTraits<T>::kName;
          if (!pack.ok()) return pack.error().WithContext("the arguments of " + what);
          std::unique_ptr<T> object;
          const Status made = Guarded(what, [&] {
            object = std::apply(
                [](auto&... values) { return std::make_unique<T>(std::move(values)...); },
                pack->values);
          });
          if (!made.ok()) return made.error();
          return std::unique_ptr<Instance>(std::make_unique<TypedInstance<T>>(std::move(object)));
        });
  }

  std::map<std::string, Factory> factories_;
  std::map<std::string, Task> tasks_;
};

// What the macros have registered in this program, and in the plugins it has loaded.
class Registration {
 public:
  explicit Registration(void (*add)(TypeTable& types));
};
[[nodiscard]] TypeTable RegisteredTypes();

}  // namespace troupe::actors
