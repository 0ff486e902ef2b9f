/* A driver in C: it calls actors of C++ and of C, and hosts some itself. Ends with 0 if all that it
 * was told is right, else says what was not. The plugin's path is its argument. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/integration/capi/packing.h"
#include "tests/integration/capi/tally.h"

static const int64_t kSoonMs = 30000;
static const troupe_bytes kNone = {NULL, 0};

#define CHECK(what)                                              \
  do {                                                           \
    if (!(what)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
      exit(1);                                                   \
    }                                                            \
  } while (0)

/* The error is as it must be: its code, a part of its text. It is released. */
#define CHECK_ERROR(code, error, wanted, part)                                      \
  do {                                                                              \
    const troupe_code got = (code);                                                 \
    if (got != (wanted) || troupe_error_code(error) != (wanted) ||                  \
        strstr(troupe_error_message(error), (part)) == NULL) {                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, troupe_code_name(got), \
              troupe_error_message(error));                                         \
      exit(1);                                                                      \
    }                                                                               \
    CHECK(troupe_error_release(error) == TROUPE_OK);                                \
    (error) = NULL;                                                                 \
  } while (0)

static void check_ok(troupe_code code, const troupe_error* error, int line) {
  if (code == TROUPE_OK && error == NULL) return;
  fprintf(stderr, "%s:%d: %s\n", __FILE__, line, troupe_error_message(error));
  exit(1);
}
#define CHECK_OK(code, error) check_ok(code, error, __LINE__)

static troupe_future* begin(troupe_actor* actor, const char* method, const packed* arguments,
                            int64_t timeout_ms) {
  troupe_future* future = NULL;
  troupe_error* error = NULL;
  CHECK_OK(troupe_call(actor, method, arguments == NULL ? kNone : packed_bytes(arguments),
                       timeout_ms, TROUPE_CALL_RETRY, &future, &error),
           error);
  return future;
}

/* What a method yields that takes a number, or nothing if there is none. */
static int64_t call_int(troupe_actor* actor, const char* method, const int64_t* argument) {
  packed arguments;
  troupe_future* future;
  troupe_error* error = NULL;
  troupe_bytes result = {NULL, 0};
  unpacker from;
  int64_t value = 0;
  if (argument != NULL) {
    pack_arguments(&arguments, 1);
    pack_int(&arguments, *argument);
  }
  future = begin(actor, method, argument == NULL ? NULL : &arguments, kSoonMs);
  CHECK_OK(troupe_future_get(future, kSoonMs, &result, &error), error);
  CHECK(unpack_head(&from, result, -1) && unpack_int(&from, &value));
  CHECK(troupe_future_release(future) == TROUPE_OK);
  return value;
}

static troupe_actor* spawn(troupe_runtime* runtime, const char* type, int64_t start,
                           const char* options) {
  packed arguments;
  troupe_actor* actor = NULL;
  troupe_error* error = NULL;
  pack_arguments(&arguments, 1);
  pack_int(&arguments, start);
  CHECK_OK(troupe_spawn(runtime, type, packed_bytes(&arguments), options, &actor, &error), error);
  return actor;
}

static troupe_code destroy_nothing(void* state, troupe_reply* reply) {
  (void)state;
  (void)reply;
  return TROUPE_OK;
}

/* Mistakes that need no cluster. */
static void check_mistakes(void) {
  troupe_runtime* runtime = NULL;
  troupe_actor* actor = NULL;
  troupe_future* future = NULL;
  troupe_error* error = NULL;
  troupe_error* again;
  troupe_actor_type type = tally_types[0];
  CHECK(troupe_c_abi() == TROUPE_C_ABI);
  CHECK(strcmp(troupe_code_name(TROUPE_PEER_GONE), "peer_gone") == 0);
  CHECK(strcmp(troupe_code_name(99), "unknown") == 0);
  CHECK(troupe_error_code(NULL) == TROUPE_OK && *troupe_error_message(NULL) == '\0');

  CHECK_ERROR(troupe_init(NULL, NULL, 0, NULL, &error), error, TROUPE_INVALID_ARGUMENT, "NULL");
  CHECK_ERROR(troupe_init("{\"adress\": \"x\"}", NULL, 0, &runtime, &error), error,
              TROUPE_INVALID_ARGUMENT, "unknown key \"adress\"; known are address");
  CHECK_ERROR(troupe_init("{", NULL, 0, &runtime, &error), error, TROUPE_INVALID_ARGUMENT, "JSON");
  CHECK_ERROR(troupe_init(NULL, NULL, 1, &runtime, &error), error, TROUPE_INVALID_ARGUMENT,
              "number is not 0");
  type.invoke = NULL;
  CHECK_ERROR(troupe_init(NULL, &type, 1, &runtime, &error), error, TROUPE_INVALID_ARGUMENT,
              "actor type 0 lacks one of construct, invoke and destroy");
  type = tally_types[0];
  type.restore = NULL;
  type.save = destroy_nothing;
  CHECK_ERROR(troupe_init(NULL, &type, 1, &runtime, &error), error, TROUPE_INVALID_ARGUMENT,
              "lacks one of save and restore");
  type = tally_types[0];
  type.size = 8;
  CHECK_ERROR(troupe_init(NULL, &type, 1, &runtime, &error), error, TROUPE_INVALID_ARGUMENT,
              "sizeof");
  CHECK(runtime == NULL);

  CHECK_ERROR(troupe_spawn(NULL, "T", kNone, NULL, &actor, &error), error, TROUPE_INVALID_ARGUMENT,
              "no handle of a runtime: it is NULL");
  CHECK_ERROR(troupe_call(NULL, "M", kNone, 1, 0, &future, &error), error, TROUPE_INVALID_ARGUMENT,
              "no handle of an actor");
  CHECK_ERROR(troupe_future_wait(NULL, 1, &error), error, TROUPE_INVALID_ARGUMENT, "a future");
  CHECK(troupe_future_ready(NULL) == -1);
  CHECK(troupe_shutdown(NULL, 1, NULL) == TROUPE_INVALID_ARGUMENT); /* Without an error, too. */
  CHECK(troupe_actor_release(NULL) == TROUPE_OK && troupe_future_release(NULL) == TROUPE_OK);
  CHECK(troupe_reply_value(NULL, kNone) == TROUPE_INVALID_ARGUMENT);
  CHECK(troupe_reply_error(NULL, "", "") == TROUPE_INVALID_ARGUMENT);
  CHECK(troupe_context_sleep(NULL, 1) == TROUPE_INVALID_ARGUMENT);
  CHECK(troupe_context_runtime(NULL) == NULL);

  (void)troupe_future_wait(NULL, 1, &error);
  again = error;
  CHECK(troupe_error_release(error) == TROUPE_OK);
  CHECK(troupe_error_release(again) == TROUPE_INVALID_ARGUMENT);
  CHECK(*troupe_error_message(again) == '\0');
}

static void check_spawning(troupe_runtime* runtime, const char* in_plugin) {
  packed arguments;
  troupe_actor* actor = NULL;
  troupe_error* error = NULL;
  pack_arguments(&arguments, 1);
  pack_int(&arguments, -1);
  CHECK_ERROR(troupe_spawn(runtime, "troupe::testing::Till", packed_bytes(&arguments), in_plugin,
                           &actor, &error),
              error, TROUPE_USER_ERROR, "sold is negative");
  CHECK(troupe_spawn(runtime, "troupe::testing::Till", packed_bytes(&arguments), in_plugin, &actor,
                     &error) == TROUPE_USER_ERROR);
  CHECK(strcmp(troupe_error_type(error), "std::invalid_argument") == 0);
  CHECK(troupe_error_release(error) == TROUPE_OK);
  CHECK_ERROR(troupe_spawn(runtime, "troupe::testing::Till", kNone, in_plugin, &actor, &error),
              error, TROUPE_CORRUPT, "the arguments of the constructor");
  CHECK_ERROR(troupe_spawn(runtime, "Nonsense", kNone, in_plugin, &actor, &error), error,
              TROUPE_NOT_FOUND, "troupe::testing::Till");
  CHECK_ERROR(troupe_spawn(runtime, "Nonsense", kNone, NULL, &actor, &error), error,
              TROUPE_NOT_FOUND, "c.Tally");
  CHECK_ERROR(troupe_spawn(runtime, "T", kNone, "{\"plugin\": \"/nowhere.so\"}", &actor, &error),
              error, TROUPE_NOT_FOUND, "the plugin /nowhere.so cannot be read");
  CHECK_ERROR(troupe_spawn(runtime, "T", kNone, "{\"plugin\": \"here.so\"}", &actor, &error), error,
              TROUPE_INVALID_ARGUMENT, "absolute path");
  CHECK_ERROR(troupe_spawn(runtime, "T", kNone, "{\"max_restarts\": 1.5}", &actor, &error), error,
              TROUPE_INVALID_ARGUMENT, "max_restarts: 1.5, which must be a whole number");
  CHECK_ERROR(troupe_spawn(runtime, NULL, kNone, NULL, &actor, &error), error,
              TROUPE_INVALID_ARGUMENT, "the type is NULL");
  CHECK_ERROR(troupe_spawn(runtime, "T", kNone, NULL, NULL, &error), error, TROUPE_INVALID_ARGUMENT,
              "NULL");
  CHECK_ERROR(troupe_find(runtime, "nobody", 2000, &actor, &error), error, TROUPE_NOT_FOUND,
              "nobody");
  CHECK_ERROR(troupe_find(runtime, "nobody", -1, &actor, &error), error, TROUPE_INVALID_ARGUMENT,
              "-1 ms");
  CHECK(actor == NULL);
}

static void check_calls(troupe_actor* till) {
  troupe_future* future = NULL;
  troupe_error* error = NULL;
  packed arguments;
  const int64_t five = 5;
  CHECK(call_int(till, "Sell", &five) == 15);
  CHECK(call_int(till, "Pid", NULL) != getpid());
  future = begin(till, "Nonsense", NULL, kSoonMs);
  CHECK_ERROR(troupe_future_get(future, kSoonMs, NULL, &error), error, TROUPE_NOT_FOUND,
              "troupe::testing::Till has no method Nonsense");
  CHECK(troupe_future_ready(future) == 1);
  CHECK(troupe_future_wait(future, 0, NULL) == TROUPE_OK); /* It is over, if not well. */
  CHECK(troupe_future_release(future) == TROUPE_OK);
  CHECK(troupe_future_release(future) == TROUPE_INVALID_ARGUMENT);
  CHECK_ERROR(troupe_future_get(future, 1, NULL, &error), error, TROUPE_INVALID_ARGUMENT,
              "it was released");
  pack_arguments(&arguments, 1);
  pack_text(&arguments, "five");
  future = begin(till, "Sell", &arguments, kSoonMs);
  CHECK_ERROR(troupe_future_get(future, kSoonMs, NULL, &error), error, TROUPE_CORRUPT,
              "expected a signed integer at [2][0]");
  CHECK(troupe_future_release(future) == TROUPE_OK);
  future = NULL;
  CHECK_ERROR(troupe_call(till, "Sell", kNone, 0, 0, &future, &error), error,
              TROUPE_INVALID_ARGUMENT, "1 ms to a year, not 0 ms");
  CHECK_ERROR(troupe_call(till, "Sell", kNone, 1, 8, &future, &error), error,
              TROUPE_INVALID_ARGUMENT, "unknown flags 8");
  CHECK_ERROR(troupe_call(till, NULL, kNone, 1, 0, &future, &error), error, TROUPE_INVALID_ARGUMENT,
              "the method is NULL");
}

static void count(void* user) { __sync_fetch_and_add((int*)user, 1); }

static void check_time(troupe_actor* till) {
  troupe_error* error = NULL;
  int called = 0;
  int tries;
  troupe_future* future = begin(till, "Linger", NULL, 300);
  CHECK(troupe_future_ready(future) == 0);
  CHECK_ERROR(troupe_future_wait(future, 10, &error), error, TROUPE_DEADLINE_EXCEEDED, "no result");
  CHECK(troupe_future_ready(future) == 0);
  CHECK_OK(troupe_future_then(future, count, &called, &error), error);
  CHECK_ERROR(troupe_future_get(future, kSoonMs, NULL, &error), error, TROUPE_DEADLINE_EXCEEDED,
              "");
  CHECK(troupe_future_ready(future) == 1);
  CHECK(troupe_actor_release((troupe_actor*)future) == TROUPE_INVALID_ARGUMENT);
  /* The one that completes it may be another thread. */
  for (tries = 0; tries < 3000 && __sync_fetch_and_add(&called, 0) == 0; ++tries) {
    const struct timespec pause = {0, 10000000};
    (void)nanosleep(&pause, NULL);
  }
  CHECK(__sync_fetch_and_add(&called, 0) == 1);
  CHECK_OK(troupe_future_then(future, count, &called, &error), error);
  CHECK(called == 2); /* At once. */
  CHECK_ERROR(troupe_future_then(future, NULL, NULL, &error), error, TROUPE_INVALID_ARGUMENT,
              "the callback is NULL");
  CHECK(troupe_future_release(future) == TROUPE_OK);

  future = begin(till, "Linger", NULL, kSoonMs);
  CHECK_ERROR(troupe_future_wait(future, 100, &error), error, TROUPE_DEADLINE_EXCEEDED, "");
  CHECK_OK(troupe_future_cancel(future, &error), error);
  CHECK_ERROR(troupe_future_get(future, kSoonMs, NULL, &error), error, TROUPE_CANCELLED, "");
  CHECK(troupe_future_release(future) == TROUPE_OK);
}

/* Of a type of this program, which is its worker, too. */
static void check_own_type(troupe_runtime* runtime, troupe_actor* till) {
  troupe_actor* tally = spawn(runtime, "c.Tally", 40, "{\"name\": \"t\", \"max_restarts\": 1}");
  troupe_actor* found = NULL;
  troupe_error* error = NULL;
  troupe_future* future;
  troupe_bytes value = {NULL, 0};
  troupe_bytes result = {NULL, 0};
  unpacker from;
  packed arguments;
  const char* text;
  size_t size;
  const int64_t two = 2;
  int64_t sold = 0;
  CHECK(call_int(tally, "Add", &two) == 42);
  future = begin(tally, "Program", NULL, kSoonMs);
  CHECK_OK(troupe_future_get(future, kSoonMs, &result, &error), error);
  CHECK(unpack_head(&from, result, -1) && unpack_text(&from, &text, &size));
  CHECK(size == strlen("c_driver") && memcmp(text, "c_driver", size) == 0);
  CHECK(troupe_future_release(future) == TROUPE_OK);
  CHECK(call_int(tally, "RemainingMs", NULL) > kSoonMs / 2);
  CHECK(call_int(tally, "RemainingMs", NULL) <= kSoonMs);

  CHECK_OK(troupe_find(runtime, "t", kSoonMs, &found, &error), error);
  CHECK(kill((pid_t)call_int(found, "Pid", NULL), SIGKILL) == 0);
  CHECK(call_int(found, "Add", &two) == 44);
  CHECK(troupe_actor_release(found) == TROUPE_OK);
  CHECK(troupe_actor_release(found) == TROUPE_INVALID_ARGUMENT);

  CHECK_OK(troupe_actor_pack(till, &value, &error), error);
  pack_arguments(&arguments, 2);
  pack_raw(&arguments, value);
  arguments.bytes[arguments.size++] = 7;
  future = begin(tally, "SellAt", &arguments, kSoonMs);
  CHECK_OK(troupe_future_get(future, kSoonMs, &result, &error), error);
  CHECK(unpack_head(&from, result, -1) && unpack_int(&from, &sold) && sold == 22);
  CHECK(troupe_future_release(future) == TROUPE_OK);
  value.size -= 1;
  CHECK_ERROR(troupe_actor_unpack(runtime, value, &found, &error), error, TROUPE_CORRUPT,
              "a reference to an actor");

  CHECK_OK(troupe_actor_kill(tally, 0, "done with", kSoonMs, &error), error);
  future = begin(tally, "Nothing", NULL, kSoonMs);
  CHECK_ERROR(troupe_future_get(future, kSoonMs, NULL, &error), error, TROUPE_PEER_GONE,
              "done with");
  CHECK(troupe_future_release(future) == TROUPE_OK);
  CHECK(troupe_actor_release(tally) == TROUPE_OK);
}

static troupe_runtime* ending = NULL;
static void end_it(void* user) { *(troupe_code*)user = troupe_shutdown(ending, 1, NULL); }

static void check_shutdown(troupe_runtime* runtime, troupe_actor* till) {
  troupe_error* error = NULL;
  troupe_actor* actor = NULL;
  troupe_code from_callback = TROUPE_OK;
  troupe_future* open = begin(till, "Linger", NULL, kSoonMs);
  troupe_future* done = begin(till, "Nonsense", NULL, 1);
  CHECK(troupe_future_wait(done, kSoonMs, NULL) == TROUPE_OK);
  ending = runtime;
  CHECK_OK(troupe_future_then(done, end_it, &from_callback, &error), error);
  CHECK(from_callback == TROUPE_INVALID_ARGUMENT);
  CHECK_OK(troupe_shutdown(runtime, kSoonMs, &error), error);
  CHECK_ERROR(troupe_future_get(open, 1000, NULL, &error), error, TROUPE_CANCELLED, "shut down");
  CHECK_ERROR(troupe_call(till, "Sell", kNone, 1000, 0, &open, &error), error, TROUPE_CANCELLED,
              "this runtime was shut down");
  CHECK_ERROR(troupe_actor_kill(till, 0, NULL, 1000, &error), error, TROUPE_CANCELLED, "shut down");
  CHECK_ERROR(troupe_spawn(runtime, "c.Tally", kNone, NULL, &actor, &error), error,
              TROUPE_INVALID_ARGUMENT, "no handle of a runtime: it was released");
  CHECK_ERROR(troupe_shutdown(runtime, 1, &error), error, TROUPE_INVALID_ARGUMENT, "released");
  CHECK(troupe_future_release(open) == TROUPE_OK && troupe_future_release(done) == TROUPE_OK);
}

int main(int argc, char** argv) {
  troupe_runtime* runtime = NULL;
  troupe_actor* till;
  troupe_error* error = NULL;
  char in_plugin[1024];
  if (getenv("TROUPE_WORKER_PROCESS") == NULL) check_mistakes();
  CHECK_OK(troupe_init("{\"resources\": {\"CPU\": 8}}", tally_types, TALLY_TYPES, &runtime, &error),
           error);
  CHECK(argc == 2);
  (void)snprintf(in_plugin, sizeof in_plugin, "{\"plugin\": \"%s\"}", argv[1]);
  check_spawning(runtime, in_plugin);
  till = spawn(runtime, "troupe::testing::Till", 10, in_plugin);
  check_calls(till);
  check_time(till);
  check_own_type(runtime, till);
  check_shutdown(runtime, till);
  CHECK(troupe_actor_release(till) == TROUPE_OK);
  (void)puts("ok");
  return 0;
}
