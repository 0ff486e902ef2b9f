// DynamicHandle: a reference to an actor whose class this program does not know: one of Python, or
// of another program. Methods are called by their names.
//
//   troupe::DynamicHandle model = troupe::FindDynamic(runtime, "model").value();
//   double loss = model.CallNamed<double>("loss", std::vector<double>{1, 2}).Get().value();
//
// Arguments and results are what the wire format knows: bool, integers, floating point,
// std::string, std::vector and std::map<std::string, T> of those. Python's None is the result of a
// method that is called as CallNamed<void>.
// Thread: any; copies refer to the same actor.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/runtime.h"

namespace troupe {

class DynamicHandle {
 public:
  // Refers to nothing: calls fail with kInvalidArgument.
  DynamicHandle() = default;
  DynamicHandle(std::shared_ptr<actors::ActorSystem> system, std::shared_ptr<actors::ActorRef> ref)
      : system_(std::move(system)), ref_(std::move(ref)) {}

  template <class R, class... A>
  [[nodiscard]] Future<R> CallNamed(const std::string& method, A&&... arguments) const {
    return CallNamedWith<R>(CallOptions{}, method, std::forward<A>(arguments)...);
  }
  // kNotFound: it has no such method; kCorrupt: the result is no R; kUserError: it raised.
  template <class R, class... A>
  [[nodiscard]] Future<R> CallNamedWith(const CallOptions& options, const std::string& method,
                                        A&&... arguments) const {
    if (!ref_) {
      return Future<R>::Failed(
          Error{ErrorCode::kInvalidArgument, "this handle refers to no actor"});
    }
    const actors::Pack<Sent<A>...> pack{{std::forward<A>(arguments)...}};
    return actors::CallRef<R>(system_, ref_, method, wire::Encode(actors::kArgumentsType, pack),
                              options);
  }
  explicit operator bool() const { return ref_ != nullptr; }
  [[nodiscard]] const std::shared_ptr<actors::ActorRef>& ref() const { return ref_; }

 private:
  // Literals are text.
  template <class A>
  using Sent =
      std::conditional_t<std::is_convertible_v<A, std::string>, std::string, std::decay_t<A>>;

  std::shared_ptr<actors::ActorSystem> system_;
  std::shared_ptr<actors::ActorRef> ref_;
};

// The living actor of this name, whatever its type. kNotFound.
[[nodiscard]] inline Result<DynamicHandle> FindDynamic(const Runtime& runtime,
                                                       const std::string& name,
                                                       Duration limit = seconds(30)) {
  const Result<actors::ActorAddress> address = actors::FindNamed(runtime.system(), name, "", limit);
  if (!address.ok()) return address.error();
  return DynamicHandle(runtime.system(), runtime.system()->Refer(*address));
}

}  // namespace troupe
