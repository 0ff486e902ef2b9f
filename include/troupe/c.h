/* The C ABI of Troupe: actors for C, and for every language that can call C. Plain C99.
 *
 *   troupe_runtime* runtime;
 *   if (troupe_init(NULL, NULL, 0, &runtime, &error)) puts(troupe_error_message(error));
 *   troupe_spawn(runtime, "Till", arguments, "{\"plugin\": \"/opt/shop/till.so\"}", &till, &error);
 *   troupe_call(till, "Sell", arguments, 1000, 0, &future, &error);
 *   troupe_future_get(future, 2000, &result, &error);
 *
 * What arguments and results are as bytes, the keys of options, and how a C program or plugin hosts
 * actors of its own: capi/README.md.
 *
 * Errors: what returns a troupe_code says TROUPE_OK or why not. If `error` is not NULL, *error is
 * then an error to be released, else NULL; what is to be written elsewhere is written on success
 * only. Nothing is thrown.
 * Owns: every handle (runtime, actor, future, error) is the caller's until it is released. A handle
 * is a number, never an address: NULL, a released one, or one of another kind is
 * TROUPE_INVALID_ARGUMENT wherever it is given, also to a second release; releasing NULL does
 * nothing. Text and bytes that are given are copied; those that are got live as long as the handle
 * that they were got from.
 * Thread: any function from any thread, unless it says otherwise.
 * Units: milliseconds. Every wait has a limit, and a call its own deadline.
 * Versions: TROUPE_C_ABI grows when something here changes its meaning; functions may be added.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <troupe/plugin_abi.h>

#define TROUPE_C_ABI 1u
#define TROUPE_C_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t troupe_code;
enum {
  TROUPE_OK = 0,
  TROUPE_INVALID_ARGUMENT = 1,
  TROUPE_NOT_FOUND = 2,
  TROUPE_ALREADY_EXISTS = 3,
  TROUPE_DEADLINE_EXCEEDED = 4,
  TROUPE_CANCELLED = 5,
  TROUPE_UNAVAILABLE = 6,
  TROUPE_BACKPRESSURE = 7,
  TROUPE_PEER_GONE = 8,
  TROUPE_EPOCH_CHANGED = 9,
  TROUPE_CONFLICT = 10,
  TROUPE_CORRUPT = 11,
  TROUPE_PERMISSION_DENIED = 12,
  TROUPE_RESOURCE_EXHAUSTED = 13,
  TROUPE_USER_ERROR = 14,
  TROUPE_DRAINED = 15,
  TROUPE_FENCED = 16,
  TROUPE_INTERNAL = 17,
  TROUPE_MISMATCH = 18
};

typedef struct troupe_runtime troupe_runtime;
typedef struct troupe_actor troupe_actor;
typedef struct troupe_future troupe_future;
typedef struct troupe_error troupe_error;
typedef struct troupe_context troupe_context; /* Of a method that runs; no handle. */
typedef struct troupe_reply troupe_reply;     /* What a callback yields; no handle. */

typedef struct troupe_bytes {
  const void* data; /* May be NULL if size is 0. */
  size_t size;
} troupe_bytes;

/* ---- the library ---- */

/* TROUPE_C_ABI of the library that is loaded; compare it with that of this header. */
TROUPE_C_EXPORT uint32_t troupe_c_abi(void);
TROUPE_C_EXPORT const char* troupe_release(void); /* "0.1.0" */
/* "deadline_exceeded"; "unknown" for a number that is no code. */
TROUPE_C_EXPORT const char* troupe_code_name(troupe_code code);

/* ---- errors: of NULL the code is TROUPE_OK and the texts are empty ---- */

TROUPE_C_EXPORT troupe_code troupe_error_code(const troupe_error* error);
/* For people, with all causes. */
TROUPE_C_EXPORT const char* troupe_error_message(const troupe_error* error);
/* What was thrown: "std::invalid_argument", "ValueError", or what troupe_reply_error said. */
TROUPE_C_EXPORT const char* troupe_error_type(const troupe_error* error);
TROUPE_C_EXPORT troupe_code troupe_error_release(troupe_error* error);

/* ---- actor types in C ---- */

/* The callbacks of one actor run on one thread, on stacks of 256 KiB, and overlap only at waits and
 * if max_concurrency is over 1. They return TROUPE_OK or any other code, and may say more through
 * `reply`. `arguments` and `method` live until the callback returns. */
typedef struct troupe_actor_type {
  size_t size;      /* sizeof(troupe_actor_type) */
  const char* name; /* In the cluster: "Tally". */
  void* user;       /* For construct; must live as long as the process. */
  troupe_code (*construct)(void* user, troupe_bytes arguments, troupe_reply* reply, void** state);
  /* TROUPE_NOT_FOUND for a method that it does not have. Without a value it yields nothing. */
  troupe_code (*invoke)(void* state, troupe_context* context, const char* method,
                        troupe_bytes arguments, troupe_reply* reply);
  void (*destroy)(void* state);
  /* Both or neither. With them the state outlives restarts; save's value is any bytes. */
  troupe_code (*save)(void* state, troupe_reply* reply);
  troupe_code (*restore)(void* state, troupe_bytes saved, troupe_reply* reply);
} troupe_actor_type;

/* The value of what this callback yields; the bytes are copied. A later one replaces it. */
TROUPE_C_EXPORT troupe_code troupe_reply_value(troupe_reply* reply, troupe_bytes value);
/* What there is to say of the code that this callback returns: its caller reads it. NULL: "". */
TROUPE_C_EXPORT troupe_code troupe_reply_error(troupe_reply* reply, const char* type,
                                               const char* message);
/* 1: nobody waits for this call any more. */
TROUPE_C_EXPORT int32_t troupe_context_cancelled(const troupe_context* context);
/* Until its deadline; 0: it has passed; -1: it has none. */
TROUPE_C_EXPORT int64_t troupe_context_remaining_ms(const troupe_context* context);
/* Lets the actor's other calls run; TROUPE_CANCELLED, TROUPE_DEADLINE_EXCEEDED: it ended early. */
TROUPE_C_EXPORT troupe_code troupe_context_sleep(troupe_context* context, int64_t duration_ms);
/* To spawn, find and call with. Not to be shut down; over when this call is, unlike handles of
 * actors and futures that it has given. */
TROUPE_C_EXPORT troupe_runtime* troupe_context_runtime(troupe_context* context);

/* ---- the runtime ---- */

/* Call first thing in main: in a process that the cluster has started to host an actor of `types`
 * it does so and never returns. Else joins the cluster that the options name, or starts an
 * embedded one, within about 20 s. `options`: a JSON object, or NULL. */
TROUPE_C_EXPORT troupe_code troupe_init(const char* options, const troupe_actor_type* types,
                                        size_t type_count, troupe_runtime** runtime,
                                        troupe_error** error);
/* Ends an embedded cluster and what was spawned and is not detached, and releases the handle. Calls
 * that are open, and later ones through handles of actors, fail with TROUPE_CANCELLED.
 * TROUPE_DEADLINE_EXCEEDED: other threads are still in calls of `runtime`; ask again. Takes up to
 * 10 s longer than its limit. Not from a method or from troupe_future_then's callback. */
TROUPE_C_EXPORT troupe_code troupe_shutdown(troupe_runtime* runtime, int64_t timeout_ms,
                                            troupe_error** error);

/* ---- actors ---- */

/* Waits until it can be called, at most as long as options' timeout_s after it has been accepted.
 * `options`: a JSON object, or NULL. `arguments` of its constructor. */
TROUPE_C_EXPORT troupe_code troupe_spawn(troupe_runtime* runtime, const char* type,
                                         troupe_bytes arguments, const char* options,
                                         troupe_actor** actor, troupe_error** error);
/* The living actor of this name. TROUPE_NOT_FOUND. */
TROUPE_C_EXPORT troupe_code troupe_find(troupe_runtime* runtime, const char* name,
                                        int64_t timeout_ms, troupe_actor** actor,
                                        troupe_error** error);
/* Ends it. restart: as a crash would, so that max_restarts decides whether it comes back. */
TROUPE_C_EXPORT troupe_code troupe_actor_kill(troupe_actor* actor, int32_t restart,
                                              const char* reason, int64_t timeout_ms,
                                              troupe_error** error);
/* The reference as one value of arguments, and back. The bytes live as long as the handle. */
TROUPE_C_EXPORT troupe_code troupe_actor_pack(troupe_actor* actor, troupe_bytes* value,
                                              troupe_error** error);
TROUPE_C_EXPORT troupe_code troupe_actor_unpack(troupe_runtime* runtime, troupe_bytes value,
                                                troupe_actor** actor, troupe_error** error);
/* The actor lives on: it ends with who spawned it, unless it is detached. */
TROUPE_C_EXPORT troupe_code troupe_actor_release(troupe_actor* actor);

/* ---- calls ---- */

/* If the actor dies while the call is on its way: send it again to its next incarnation. Where
 * state is saved it has its effect once even so, else it may run twice. */
#define TROUPE_CALL_RETRY 1u

/* The future completes by the time-out, 1 ms to a year. */
TROUPE_C_EXPORT troupe_code troupe_call(troupe_actor* actor, const char* method,
                                        troupe_bytes arguments, int64_t timeout_ms, uint32_t flags,
                                        troupe_future** future, troupe_error** error);
/* 1: complete; 0: not yet; -1: no such future. */
TROUPE_C_EXPORT int32_t troupe_future_ready(troupe_future* future);
/* TROUPE_OK as soon as it is complete, also if the call has failed; TROUPE_DEADLINE_EXCEEDED: it is
 * not. In a method it lets the actor's other calls run, and ends with the call that waits. */
TROUPE_C_EXPORT troupe_code troupe_future_wait(troupe_future* future, int64_t timeout_ms,
                                               troupe_error** error);
/* Waits, then gives the result, or the error that the call has ended with. `result` may be NULL. */
TROUPE_C_EXPORT troupe_code troupe_future_get(troupe_future* future, int64_t timeout_ms,
                                              troupe_bytes* result, troupe_error** error);
/* Calls `done(user)` once when it is complete, at once if it is: on any thread, which it must not
 * block. It is called even if the future has been released. */
TROUPE_C_EXPORT troupe_code troupe_future_then(troupe_future* future, void (*done)(void* user),
                                               void* user, troupe_error** error);
/* Completes it with TROUPE_CANCELLED, and the method, if it runs, learns of it. */
TROUPE_C_EXPORT troupe_code troupe_future_cancel(troupe_future* future, troupe_error** error);
/* The call goes on. */
TROUPE_C_EXPORT troupe_code troupe_future_release(troupe_future* future);

/* ---- plugins in C ---- */

/* What TROUPE_C_PLUGIN uses. */
TROUPE_C_EXPORT void troupe_c_host(const char* path, const troupe_actor_type* types,
                                   size_t type_count);
TROUPE_C_EXPORT const troupe_plugin_info* troupe_c_plugin(const troupe_actor_type* types,
                                                          size_t type_count,
                                                          void (*host)(const char* path));

#ifdef __cplusplus
}
#endif

/* Once in one source of a plugin that troupe_add_plugin(name C ...) builds; `types` is an array. */
#define TROUPE_C_PLUGIN(types, type_count)                                                         \
  static void troupe_c_plugin_host(const char* path) { troupe_c_host(path, (types), type_count); } \
  TROUPE_C_EXPORT const troupe_plugin_info* troupe_plugin(void);                                   \
  TROUPE_C_EXPORT const troupe_plugin_info* troupe_plugin(void) {                                  \
    return troupe_c_plugin((types), (type_count), troupe_c_plugin_host);                           \
  }                                                                                                \
  struct troupe_c_plugin_end
