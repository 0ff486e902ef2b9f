#include "capi/internal/c_types.h"

#include <memory>
#include <utility>

#include "actors/api/actor_type.h"

namespace troupe::capi {
namespace {

constexpr troupe_code kLastCode = TROUPE_MISMATCH;
static_assert(kLastCode == static_cast<troupe_code>(ErrorCode::kMismatch) &&
              TROUPE_USER_ERROR == static_cast<troupe_code>(ErrorCode::kUserError) &&
              TROUPE_PEER_GONE == static_cast<troupe_code>(ErrorCode::kPeerGone));

troupe_bytes BytesOf(const std::string& text) { return {text.data(), text.size()}; }

// What a callback has returned, with what it said of it.
Error Failed(const std::string& what, troupe_code code, const troupe_reply& reply) {
  const bool known = code > 0 && code <= kLastCode;
  Error error{known ? static_cast<ErrorCode>(code) : ErrorCode::kUserError, reply.message};
  if (error.message.empty()) error.message = "it returned " + std::to_string(code);
  if (!reply.type.empty())
    error.origin = std::make_shared<const ErrorOrigin>(ErrorOrigin{reply.type, "", "", "", {}});
  return error.WithContext(what);
}

// What a callback has come to. One that is C++ behind its C may throw.
template <class F>
Status Ran(const std::string& what, const troupe_reply& reply, F&& callback) {
  troupe_code code = TROUPE_OK;
  Status ran = actors::Guarded(what, [&] { code = callback(); });
  if (!ran.ok() || code == TROUPE_OK) return ran;
  return Failed(what, code, reply);
}

// A described type with the texts that C need not keep.
struct Described {
  std::string name;
  troupe_actor_type callbacks{};
};

class CInstance final : public actors::Instance {
 public:
  CInstance(std::shared_ptr<const Described> type, void* state)
      : type_(std::move(type)), state_(state) {}
  ~CInstance() override { type_->callbacks.destroy(state_); }
  CInstance(const CInstance&) = delete;
  CInstance& operator=(const CInstance&) = delete;

  Result<std::string> Invoke(CallContext& call, const std::string& method,
                             std::string arguments) override {
    troupe_context context{&call};
    troupe_reply reply;
    bool unknown = false;
    const Status ran = Ran(type_->name + "." + method, reply, [&] {
      const troupe_code code =
          type_->callbacks.invoke(state_, &context, method.c_str(), BytesOf(arguments), &reply);
      unknown = code == TROUPE_NOT_FOUND && reply.message.empty();
      return code;
    });
    if (context.runtime != nullptr) ReleaseRuntime(context.runtime);
    if (unknown) return Error{ErrorCode::kNotFound, type_->name + " has no method " + method};
    if (!ran.ok()) return ran.error();
    if (reply.has_value) return std::move(reply.value);
    return wire::Encode(actors::kValueType, actors::Box<void>{});
  }
  [[nodiscard]] bool saves() const override { return type_->callbacks.save != nullptr; }
  Result<std::string> Save() override {
    troupe_reply reply;
    const Status ran =
        Ran(type_->name + ".save", reply, [&] { return type_->callbacks.save(state_, &reply); });
    if (!ran.ok()) return ran.error();
    return std::move(reply.value);
  }
  Status Restore(const std::string& saved) override {
    if (!saves()) return Status::Ok();
    troupe_reply reply;
    return Ran(type_->name + ".restore", reply,
               [&] { return type_->callbacks.restore(state_, BytesOf(saved), &reply); });
  }

 private:
  const std::shared_ptr<const Described> type_;
  void* const state_;
};

Result<std::unique_ptr<actors::Instance>> Construct(const std::shared_ptr<const Described>& type,
                                                    const std::string& arguments) {
  troupe_reply reply;
  void* state = nullptr;
  const troupe_actor_type& callbacks = type->callbacks;
  const Status ran = Ran("the constructor of " + type->name, reply, [&] {
    return callbacks.construct(callbacks.user, BytesOf(arguments), &reply, &state);
  });
  if (!ran.ok()) return ran.error();
  return std::unique_ptr<actors::Instance>(std::make_unique<CInstance>(type, state));
}

// What a description of C lacks; null: nothing.
const char* Lacks(const troupe_actor_type& type) {
  if (type.size != sizeof type) return "a size that this library knows: set it to its sizeof";
  if (type.name == nullptr || *type.name == '\0') return "a name";
  if (type.construct == nullptr || type.invoke == nullptr || type.destroy == nullptr)
    return "one of construct, invoke and destroy";
  if ((type.save == nullptr) != (type.restore == nullptr)) return "one of save and restore";
  return nullptr;
}

}  // namespace

Result<actors::TypeTable> TypesOf(const troupe_actor_type* types, size_t count) {
  actors::TypeTable table;
  if (types == nullptr && count > 0)
    return Error{ErrorCode::kInvalidArgument,
                 "the actor types are NULL, but their number is not 0"};
  for (size_t i = 0; i < count; ++i) {
    if (const char* lacks = Lacks(types[i]); lacks != nullptr)
      return Error{ErrorCode::kInvalidArgument,
                   "actor type " + std::to_string(i) + " lacks " + lacks};
    auto type = std::make_shared<Described>(Described{types[i].name, types[i]});
    type->callbacks.name = nullptr;  // C's may be gone.
    table.AddFactory(type->name, [type](actors::ActorSystem*, const std::string& arguments) {
      return Construct(type, arguments);
    });
  }
  return table;
}

}  // namespace troupe::capi
