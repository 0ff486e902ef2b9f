#include "actors/host/instance.h"

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <typeinfo>

namespace troupe::actors {
namespace {

// Not held across a wait (F-5): decoding never waits.
thread_local ActorSystem* t_decoding = nullptr;

std::string TypeName(const std::type_info& type) {
  int status = 0;
  char* name = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string text = status == 0 ? name : type.name();
  std::free(name);
  return text;
}

// A std::nested_exception's inner ones are what it is due to.
std::shared_ptr<const Error> InnerOf(const std::exception& e);

Error Described(const std::exception& e) {
  if (const auto* known = dynamic_cast<const ActorError*>(&e)) return known->error();
  return Error{ErrorCode::kUserError, e.what(),
               std::make_shared<const ErrorOrigin>(
                   ErrorOrigin{TypeName(typeid(e)), "", "", "", InnerOf(e)})};
}

std::shared_ptr<const Error> InnerOf(const std::exception& e) {
  try {
    std::rethrow_if_nested(e);
  } catch (const std::exception& inner) {
    return std::make_shared<const Error>(Described(inner));
  } catch (...) {
    return std::make_shared<const Error>(
        Error{ErrorCode::kUserError, "an exception that is not a std::exception"});
  }
  return nullptr;
}

}  // namespace

Status Guarded(const std::string& what, const std::function<void()>& body) {
  try {
    body();
    return Status::Ok();
  } catch (const ActorError& e) {
    // Somebody else's error that went through: this one is due to it.
    return Error{e.error().code, what + " ended with an error of what it called",
                 std::make_shared<const ErrorOrigin>(ErrorOrigin{
                     "troupe::ActorError", "", "", "", std::make_shared<const Error>(e.error())})};
  } catch (const std::exception& e) {
    return Described(e).WithContext(what + " threw");
  } catch (...) {
    return Error{ErrorCode::kUserError, what + " threw an exception that is not a std::exception"};
  }
}

DecodeScope::DecodeScope(ActorSystem* system) : before_(std::exchange(t_decoding, system)) {}
DecodeScope::~DecodeScope() { t_decoding = before_; }
ActorSystem* DecodeScope::Current() { return t_decoding; }

}  // namespace troupe::actors
