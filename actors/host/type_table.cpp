#include "actors/host/type_table.h"

#include <mutex>
#include <vector>

namespace troupe::actors {
namespace {

// All tasks of a program as the methods of one actor.
class TaskInstance final : public Instance {
 public:
  explicit TaskInstance(std::map<std::string, TypeTable::Task> tasks) : tasks_(std::move(tasks)) {}

  Result<std::string> Invoke(CallContext& context, const std::string& method,
                             std::string arguments) override {
    const auto found = tasks_.find(method);
    if (found == tasks_.end()) {
      return Error{ErrorCode::kNotFound,
                   "this program has no task " + method +
                       "; register it with TROUPE_TASK, and use one build everywhere"};
    }
    return found->second(context, std::move(arguments));
  }

 private:
  const std::map<std::string, TypeTable::Task> tasks_;
};

struct Registered {
  std::mutex mu;
  std::vector<void (*)(TypeTable&)> all;
};
// What static initialisers and plugins add to; there is nobody to hand it to them.
Registered& TheRegistered() {
  static Registered registered;
  return registered;
}

template <class T>
std::string Names(const std::map<std::string, T>& entries) {
  std::string names;
  for (const auto& [name, entry] : entries) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

}  // namespace

std::string TypeTable::Describe() const {
  return "actors " + Names(factories_) + "; tasks " + Names(tasks_);
}

Result<std::unique_ptr<Instance>> TypeTable::Make(ActorSystem* system, const std::string& type,
                                                  const std::string& arguments) const {
  if (type == kTaskRunner) return std::unique_ptr<Instance>(new TaskInstance(tasks_));
  const auto found = factories_.find(type);
  if (found != factories_.end()) return found->second(system, arguments);
  return Error{ErrorCode::kNotFound, "this program does not describe an actor type " + type +
                                         " (it describes " + Names(factories_) +
                                         "); describe it with TROUPE_ACTOR"};
}

Registration::Registration(void (*add)(TypeTable& types)) {
  std::lock_guard lock(TheRegistered().mu);
  TheRegistered().all.push_back(add);
}

TypeTable RegisteredTypes() {
  TypeTable types;
  std::lock_guard lock(TheRegistered().mu);
  for (const auto add : TheRegistered().all) add(types);
  return types;
}

}  // namespace troupe::actors
