#include <troupe/c.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <troupe/dynamic.h>
#include <troupe/plugin.h>
#include "capi/internal/c_types.h"
#include "capi/internal/handles.h"
#include "capi/internal/options_json.h"
#include "capi/internal/session.h"
#include "daemons/client/actor_process.h"

namespace troupe::capi {
namespace {

constexpr int64_t kTimeoutMsMax = int64_t{365} * 24 * 3600 * 1000;
constexpr Duration kRequestLimit = seconds(60);  // Over that of any request to the head.

struct ActorEntry {
  std::shared_ptr<Session> session;
  std::shared_ptr<actors::ActorRef> ref;
  std::mutex mu;
  std::string packed;
};

struct FutureEntry {
  Future<std::string> future;
  std::mutex mu;
  std::optional<Result<std::string>> result;  // Constant once set: C reads it.
};

struct ErrorEntry {
  Error error;
  std::string text = error.ToString();
};

struct PluginEntry {
  std::string describes;
  troupe_plugin_info info{};
};

// C has nobody to hand them from function to function. Never destroyed: threads may outlive main.
struct Tables {
  Handles<troupe_runtime, Session> runtimes{"a runtime", 1};
  Handles<troupe_actor, ActorEntry> actors{"an actor", 2};
  Handles<troupe_future, FutureEntry> futures{"a future", 3};
  Handles<troupe_error, ErrorEntry> errors{"an error", 4};
  // By their hosts: what is told of the plugins in C that this process has loaded.
  std::mutex plugins_mu;
  std::map<void (*)(const char*), PluginEntry> plugins;
};
Tables& TheTables() {
  static Tables* const tables = new Tables();
  return *tables;
}

// While a callback of troupe_future_then runs on this thread.
thread_local bool t_in_callback = false;

troupe_code Give(const Error& error, troupe_error** to) {
  if (to != nullptr) *to = TheTables().errors.Add(std::make_shared<ErrorEntry>(ErrorEntry{error}));
  return static_cast<troupe_code>(error.code);
}

// Runs what a function of C does: nothing is thrown over its edge.
template <class F>
troupe_code Do(troupe_error** error, F&& body) {
  if (error != nullptr) *error = nullptr;
  Status done;
  try {
    done = body();
  } catch (const std::exception& e) {
    done = Error{ErrorCode::kInternal, std::string("an exception in the runtime: ") + e.what()};
  }
  return done.ok() ? TROUPE_OK : Give(done.error(), error);
}

template <class Opaque, class T>
Result<std::shared_ptr<T>> Find(const Handles<Opaque, T>& table, const Opaque* handle) {
  std::shared_ptr<T> object = table.Find(handle);
  if (object == nullptr) return table.Unknown(handle);
  return object;
}

template <class Opaque, class T>
troupe_code Release(Handles<Opaque, T>& table, const Opaque* handle) {
  if (handle == nullptr || table.Take(handle) != nullptr) return TROUPE_OK;
  return TROUPE_INVALID_ARGUMENT;
}

Error Null(const char* what) {
  return Error{ErrorCode::kInvalidArgument, std::string(what) + " is NULL"};
}

Result<Duration> Limit(int64_t timeout_ms, int64_t least = 0) {
  if (timeout_ms >= least && timeout_ms <= kTimeoutMsMax) return Duration(milliseconds(timeout_ms));
  return Error{ErrorCode::kInvalidArgument, "a time-out is " + std::to_string(least) +
                                                " ms to a year, not " + std::to_string(timeout_ms) +
                                                " ms"};
}

// NULL and nothing: the call has no arguments.
Result<std::string> ArgumentsOf(const troupe_bytes& bytes) {
  if (bytes.size == 0) return wire::Encode(actors::kArgumentsType, actors::Pack<>{});
  if (bytes.data == nullptr) return Null("the data of the arguments");
  return std::string(static_cast<const char*>(bytes.data), bytes.size);
}

troupe_actor* NewActor(std::shared_ptr<Session> session, std::shared_ptr<actors::ActorRef> ref) {
  auto entry = std::make_shared<ActorEntry>();
  entry->session = std::move(session);
  entry->ref = std::move(ref);
  return TheTables().actors.Add(std::move(entry));
}

// A runtime that may be called.
struct Entered {
  std::shared_ptr<Session> session;
  Session::Use use;
};
Result<Entered> Enter(const troupe_runtime* handle) {
  Result<std::shared_ptr<Session>> session = Find(TheTables().runtimes, handle);
  if (!session.ok()) return session.error();
  Result<Session::Use> use = (*session)->Enter();
  if (!use.ok()) return use.error();
  return Entered{std::move(*session), std::move(*use)};
}

Status Init(const char* options, const troupe_actor_type* types, size_t count,
            troupe_runtime** runtime) {
  if (runtime == nullptr) return Null("where the runtime is to be put");
  Result<actors::TypeTable> table = TypesOf(types, count);
  if (daemons::InActorProcess() && !table.ok()) daemons::RefuseAssigned(table.error());
  if (!table.ok()) return table.error();
  internal::HostIfWorker(*table);
  Result<InitOptions> parsed = ParseInitOptions(options);
  if (!parsed.ok()) return parsed.error();
  Result<Cluster> started = internal::Start(*parsed, std::move(*table));
  if (!started.ok()) return started.error();
  *runtime = TheTables().runtimes.Add(std::make_shared<Session>(std::move(*started), true));
  return Status::Ok();
}

Status Shutdown(troupe_runtime* handle, int64_t timeout_ms) {
  const Result<std::shared_ptr<Session>> session = Find(TheTables().runtimes, handle);
  if (!session.ok()) return session.error();
  const Result<Duration> limit = Limit(timeout_ms);
  if (!limit.ok()) return limit.error();
  if (t_in_callback || CallContext::Current() != nullptr)
    return Error{ErrorCode::kInvalidArgument,
                 "a runtime cannot be shut down by what runs on its threads: neither in a method "
                 "nor in a callback"};
  if (Status s = (*session)->End(*limit); !s.ok()) return s;
  (void)TheTables().runtimes.Take(handle);
  return Status::Ok();
}

Status Spawn(troupe_runtime* handle, const char* type, const troupe_bytes& arguments,
             const char* options, troupe_actor** actor) {
  if (type == nullptr) return Null("the type");
  if (actor == nullptr) return Null("where the actor is to be put");
  Result<Entered> runtime = Enter(handle);
  if (!runtime.ok()) return runtime.error();
  const Result<ActorOptions> parsed = ParseActorOptions(options);
  if (!parsed.ok()) return parsed.error();
  Result<std::string> packed = ArgumentsOf(arguments);
  if (!packed.ok()) return packed.error();
  Result<std::shared_ptr<actors::ActorRef>> ref =
      actors::Place(runtime->use.system(), *parsed,
                    actors::MakeBlueprint(parsed->limits(), type, std::move(*packed)), true);
  if (!ref.ok()) return ref.error();
  *actor = NewActor(runtime->session, std::move(*ref));
  return Status::Ok();
}

Status FindNamed(troupe_runtime* handle, const char* name, int64_t timeout_ms,
                 troupe_actor** actor) {
  if (name == nullptr) return Null("the name");
  if (actor == nullptr) return Null("where the actor is to be put");
  const Result<Duration> limit = Limit(timeout_ms);
  if (!limit.ok()) return limit.error();
  Result<Entered> runtime = Enter(handle);
  if (!runtime.ok()) return runtime.error();
  const auto& system = runtime->use.system();
  const Result<actors::ActorAddress> address = actors::FindNamed(system, name, "", *limit);
  if (!address.ok()) return address.error();
  *actor = NewActor(runtime->session, system->Refer(*address));
  return Status::Ok();
}

Status Kill(troupe_actor* handle, bool restart, const char* reason, int64_t timeout_ms) {
  const Result<std::shared_ptr<ActorEntry>> actor = Find(TheTables().actors, handle);
  if (!actor.ok()) return actor.error();
  const Result<Duration> limit = Limit(timeout_ms);
  if (!limit.ok()) return limit.error();
  const Result<Session::Use> use = (*actor)->session->Enter();
  if (!use.ok()) return use.error();
  const Future<std::string> done;
  (*actor)->ref->Kill(restart, reason == nullptr ? "killed" : reason,
                      [done](Result<std::string> r) { done.Complete(std::move(r)); });
  const Result<std::string> ended = done.Get(std::min(*limit, kRequestLimit));
  return ended.ok() ? Status::Ok() : Status(ended.error());
}

// As an ActorHandle's fields.
struct PackedActor {
  actors::ActorAddress address;
  template <class A>
  void Fields(A& a) {
    a(address);
  }
};

Status PackActor(troupe_actor* handle, troupe_bytes* value) {
  const Result<std::shared_ptr<ActorEntry>> actor = Find(TheTables().actors, handle);
  if (!actor.ok()) return actor.error();
  if (value == nullptr) return Null("where the bytes are to be put");
  std::lock_guard lock((*actor)->mu);
  if ((*actor)->packed.empty()) {
    wire::Writer w;
    wire::internal::WriteValue(w, PackedActor{(*actor)->ref->address()});
    (*actor)->packed = w.Take();
  }
  *value = {(*actor)->packed.data(), (*actor)->packed.size()};
  return Status::Ok();
}

Status UnpackActor(troupe_runtime* handle, const troupe_bytes& value, troupe_actor** actor) {
  if (value.data == nullptr) return Null("the value");
  if (actor == nullptr) return Null("where the actor is to be put");
  Result<Entered> runtime = Enter(handle);
  if (!runtime.ok()) return runtime.error();
  wire::Reader r(std::string_view(static_cast<const char*>(value.data), value.size));
  PackedActor packed;
  wire::internal::ReadValue(r, packed);
  if (const Status s = r.Finish(); !s.ok()) return s.error().WithContext("a reference to an actor");
  *actor = NewActor(runtime->session, runtime->use.system()->Refer(packed.address));
  return Status::Ok();
}

Status Call(troupe_actor* handle, const char* method, const troupe_bytes& arguments,
            int64_t timeout_ms, uint32_t flags, troupe_future** future) {
  const Result<std::shared_ptr<ActorEntry>> actor = Find(TheTables().actors, handle);
  if (!actor.ok()) return actor.error();
  if (method == nullptr) return Null("the method");
  if (future == nullptr) return Null("where the future is to be put");
  const Result<Duration> limit = Limit(timeout_ms, 1);
  if (!limit.ok()) return limit.error();
  if ((flags & ~TROUPE_CALL_RETRY) != 0)
    return Error{ErrorCode::kInvalidArgument, "unknown flags " + std::to_string(flags)};
  Result<std::string> packed = ArgumentsOf(arguments);
  if (!packed.ok()) return packed.error();
  const Result<Session::Use> use = (*actor)->session->Enter();
  if (!use.ok()) return use.error();
  auto entry = std::make_shared<FutureEntry>();
  const Future<std::string>& called = entry->future;
  const uint64_t call =
      (*actor)->ref->Call(method, std::move(*packed), {*limit, (flags & TROUPE_CALL_RETRY) != 0},
                          [called](Result<std::string> r) { called.Complete(std::move(r)); });
  if (call != 0)
    called.SetCall(std::make_shared<actors::RefCall>(use->system(), (*actor)->ref, call));
  *future = TheTables().futures.Add(std::move(entry));
  return Status::Ok();
}

// Success as soon as the result is there, whatever it is.
Result<std::shared_ptr<FutureEntry>> Completed(troupe_future* handle, int64_t timeout_ms) {
  Result<std::shared_ptr<FutureEntry>> entry = Find(TheTables().futures, handle);
  if (!entry.ok()) return entry.error();
  const Result<Duration> limit = Limit(timeout_ms);
  if (!limit.ok()) return limit.error();
  const Future<std::string>& future = (*entry)->future;
  Result<std::string> result = future.Get(*limit);
  // An error may be that of this wait.
  if (!result.ok() && !future.Ready()) return result.error();
  std::lock_guard lock((*entry)->mu);
  if (!(*entry)->result) (*entry)->result = future.Get(Duration::zero());
  return std::move(*entry);
}

}  // namespace

void ReleaseRuntime(troupe_runtime* runtime) { (void)TheTables().runtimes.Take(runtime); }

}  // namespace troupe::capi

// ---- the functions of C ----

using troupe::capi::Do;
using troupe::capi::Find;
using troupe::capi::TheTables;

extern "C" {

uint32_t troupe_c_abi(void) { return TROUPE_C_ABI; }
const char* troupe_release(void) { return troupe::ReleaseName(); }
const char* troupe_code_name(troupe_code code) {
  if (code < TROUPE_OK || code > TROUPE_MISMATCH) return "unknown";
  return troupe::ErrorCodeName(static_cast<troupe::ErrorCode>(code)).data();
}

troupe_code troupe_error_code(const troupe_error* error) {
  if (error == nullptr) return TROUPE_OK;
  const auto entry = TheTables().errors.Find(error);
  return entry ? static_cast<troupe_code>(entry->error.code) : TROUPE_INVALID_ARGUMENT;
}
const char* troupe_error_message(const troupe_error* error) {
  const auto entry = TheTables().errors.Find(error);
  return entry ? entry->text.c_str() : "";
}
const char* troupe_error_type(const troupe_error* error) {
  const auto entry = TheTables().errors.Find(error);
  return entry && entry->error.origin ? entry->error.origin->type.c_str() : "";
}
troupe_code troupe_error_release(troupe_error* error) {
  return troupe::capi::Release(TheTables().errors, error);
}

troupe_code troupe_reply_value(troupe_reply* reply, troupe_bytes value) {
  if (reply == nullptr || (value.data == nullptr && value.size > 0)) return TROUPE_INVALID_ARGUMENT;
  reply->value.assign(static_cast<const char*>(value.data), value.size);
  reply->has_value = true;
  return TROUPE_OK;
}
troupe_code troupe_reply_error(troupe_reply* reply, const char* type, const char* message) {
  if (reply == nullptr) return TROUPE_INVALID_ARGUMENT;
  reply->type = type == nullptr ? "" : type;
  reply->message = message == nullptr ? "" : message;
  return TROUPE_OK;
}
int32_t troupe_context_cancelled(const troupe_context* context) {
  return context != nullptr && context->call->cancelled() ? 1 : 0;
}
int64_t troupe_context_remaining_ms(const troupe_context* context) {
  if (context == nullptr || context->call->deadline() == troupe::Time::Never()) return -1;
  const troupe::Duration left = context->call->deadline() - troupe::SteadyClock().Now();
  return std::max<int64_t>(0, left / troupe::milliseconds(1));
}
troupe_code troupe_context_sleep(troupe_context* context, int64_t duration_ms) {
  const auto limit = troupe::capi::Limit(duration_ms);
  if (context == nullptr || !limit.ok()) return TROUPE_INVALID_ARGUMENT;
  const troupe::Status slept = context->call->Sleep(*limit);
  return slept.ok() ? TROUPE_OK : static_cast<troupe_code>(slept.error().code);
}
troupe_runtime* troupe_context_runtime(troupe_context* context) {
  if (context == nullptr) return nullptr;
  if (context->runtime == nullptr) {
    const troupe::Cluster runtime(context->call->system().shared_from_this());
    context->runtime =
        TheTables().runtimes.Add(std::make_shared<troupe::capi::Session>(runtime, false));
  }
  return context->runtime;
}

troupe_code troupe_init(const char* options, const troupe_actor_type* types, size_t type_count,
                        troupe_runtime** runtime, troupe_error** error) {
  return Do(error, [&] { return troupe::capi::Init(options, types, type_count, runtime); });
}
troupe_code troupe_shutdown(troupe_runtime* runtime, int64_t timeout_ms, troupe_error** error) {
  return Do(error, [&] { return troupe::capi::Shutdown(runtime, timeout_ms); });
}

troupe_code troupe_spawn(troupe_runtime* runtime, const char* type, troupe_bytes arguments,
                         const char* options, troupe_actor** actor, troupe_error** error) {
  return Do(error, [&] { return troupe::capi::Spawn(runtime, type, arguments, options, actor); });
}
troupe_code troupe_find(troupe_runtime* runtime, const char* name, int64_t timeout_ms,
                        troupe_actor** actor, troupe_error** error) {
  return Do(error, [&] { return troupe::capi::FindNamed(runtime, name, timeout_ms, actor); });
}
troupe_code troupe_actor_kill(troupe_actor* actor, int32_t restart, const char* reason,
                              int64_t timeout_ms, troupe_error** error) {
  return Do(error, [&] { return troupe::capi::Kill(actor, restart != 0, reason, timeout_ms); });
}
troupe_code troupe_actor_pack(troupe_actor* actor, troupe_bytes* value, troupe_error** error) {
  return Do(error, [&] { return troupe::capi::PackActor(actor, value); });
}
troupe_code troupe_actor_unpack(troupe_runtime* runtime, troupe_bytes value, troupe_actor** actor,
                                troupe_error** error) {
  return Do(error, [&] { return troupe::capi::UnpackActor(runtime, value, actor); });
}
troupe_code troupe_actor_release(troupe_actor* actor) {
  return troupe::capi::Release(TheTables().actors, actor);
}

troupe_code troupe_call(troupe_actor* actor, const char* method, troupe_bytes arguments,
                        int64_t timeout_ms, uint32_t flags, troupe_future** future,
                        troupe_error** error) {
  return Do(error, [&] {
    return troupe::capi::Call(actor, method, arguments, timeout_ms, flags, future);
  });
}
int32_t troupe_future_ready(troupe_future* future) {
  const auto entry = TheTables().futures.Find(future);
  if (entry == nullptr) return -1;
  return entry->future.Ready() ? 1 : 0;
}
troupe_code troupe_future_wait(troupe_future* future, int64_t timeout_ms, troupe_error** error) {
  return Do(error, [&]() -> troupe::Status {
    const auto entry = troupe::capi::Completed(future, timeout_ms);
    return entry.ok() ? troupe::Status::Ok() : troupe::Status(entry.error());
  });
}
troupe_code troupe_future_get(troupe_future* future, int64_t timeout_ms, troupe_bytes* result,
                              troupe_error** error) {
  return Do(error, [&]() -> troupe::Status {
    const auto entry = troupe::capi::Completed(future, timeout_ms);
    if (!entry.ok()) return entry.error();
    const troupe::Result<std::string>& got = *(*entry)->result;
    if (!got.ok()) return got.error();
    if (result != nullptr) *result = {got->data(), got->size()};
    return troupe::Status::Ok();
  });
}
troupe_code troupe_future_then(troupe_future* future, void (*done)(void* user), void* user,
                               troupe_error** error) {
  return Do(error, [&]() -> troupe::Status {
    const auto entry = Find(TheTables().futures, future);
    if (!entry.ok()) return entry.error();
    if (done == nullptr) return troupe::capi::Null("the callback");
    (*entry)->future.OnComplete([done, user](const troupe::Result<std::string>&) {
      const bool outer = std::exchange(troupe::capi::t_in_callback, true);
      done(user);
      troupe::capi::t_in_callback = outer;
    });
    return troupe::Status::Ok();
  });
}
troupe_code troupe_future_cancel(troupe_future* future, troupe_error** error) {
  return Do(error, [&]() -> troupe::Status {
    const auto entry = Find(TheTables().futures, future);
    if (!entry.ok()) return entry.error();
    (*entry)->future.Cancel();
    return troupe::Status::Ok();
  });
}
troupe_code troupe_future_release(troupe_future* future) {
  return troupe::capi::Release(TheTables().futures, future);
}

void troupe_c_host(const char* path, const troupe_actor_type* types, size_t type_count) {
  const auto table = troupe::capi::TypesOf(types, type_count);
  if (!table.ok()) troupe::daemons::RefuseAssigned(table.error().WithContext(path));
  troupe::internal::HostPlugin(*table, path);
}
const troupe_plugin_info* troupe_c_plugin(const troupe_actor_type* types, size_t type_count,
                                          void (*host)(const char* path)) {
  const auto table = troupe::capi::TypesOf(types, type_count);
  std::lock_guard lock(TheTables().plugins_mu);
  auto& entry = TheTables().plugins[host];
  if (entry.describes.empty()) {
    entry.describes = table.ok() ? table->Describe() : table.error().message;
    entry.info = troupe::internal::PluginInfo(entry.describes, host);
  }
  return &entry.info;
}

}  // extern "C"
