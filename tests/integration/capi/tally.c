/* c.Tally: a number that saves itself. */
#include "tests/integration/capi/tally.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/capi/packing.h"

typedef struct tally {
  int64_t sum;
  int64_t lingered; /* Calls that have heard that nobody waits any more. */
} tally;

static troupe_code wrong_arguments(troupe_reply* reply) {
  (void)troupe_reply_error(reply, NULL, "the arguments do not fit");
  return TROUPE_CORRUPT;
}

static troupe_code yield_int(troupe_reply* reply, int64_t value) {
  packed result;
  pack_result(&result);
  pack_int(&result, value);
  return troupe_reply_value(reply, packed_bytes(&result));
}

static troupe_code construct(void* user, troupe_bytes arguments, troupe_reply* reply,
                             void** state) {
  unpacker from;
  int64_t start;
  tally* made;
  (void)user;
  if (!unpack_head(&from, arguments, 1) || !unpack_int(&from, &start))
    return wrong_arguments(reply);
  if (start < 0) {
    (void)troupe_reply_error(reply, NULL, "a tally begins at 0 or above");
    return TROUPE_INVALID_ARGUMENT;
  }
  made = calloc(1, sizeof *made);
  if (made == NULL) return TROUPE_RESOURCE_EXHAUSTED;
  made->sum = start;
  *state = made;
  return TROUPE_OK;
}

static troupe_code fail(troupe_bytes arguments, troupe_reply* reply) {
  unpacker from;
  const char* why;
  size_t size;
  char text[256];
  if (!unpack_head(&from, arguments, 1) || !unpack_text(&from, &why, &size) || size >= sizeof text)
    return wrong_arguments(reply);
  memcpy(text, why, size);
  text[size] = '\0';
  (void)troupe_reply_error(reply, "tally.Broken", text);
  return TROUPE_USER_ERROR;
}

/* Calls Sell of the Till whose handle is the first argument with the second. The handle is the one
 * value that is copied as it stands, so it is found by its length: what the number takes is known. */
static troupe_code sell_at(troupe_context* context, troupe_bytes arguments, troupe_reply* reply) {
  unpacker from;
  troupe_bytes till_value;
  troupe_runtime* runtime = troupe_context_runtime(context);
  troupe_actor* till = NULL;
  troupe_future* future = NULL;
  troupe_error* error = NULL;
  troupe_bytes result;
  packed amount;
  troupe_code code;
  if (!unpack_head(&from, arguments, 2)) return wrong_arguments(reply);
  till_value = unpack_rest(&from);
  if (till_value.size < 2) return wrong_arguments(reply);
  till_value.size -= 1; /* The amount is below 128. */
  pack_arguments(&amount, 1);
  pack_int(&amount, ((const unsigned char*)till_value.data)[till_value.size]);
  code = troupe_actor_unpack(runtime, till_value, &till, &error);
  if (code == TROUPE_OK)
    code = troupe_call(till, "Sell", packed_bytes(&amount), 10000, 0, &future, &error);
  if (code == TROUPE_OK) code = troupe_future_get(future, 10000, &result, &error);
  if (code == TROUPE_OK) code = troupe_reply_value(reply, result);
  if (error != NULL)
    (void)troupe_reply_error(reply, troupe_error_type(error), troupe_error_message(error));
  (void)troupe_error_release(error);
  (void)troupe_future_release(future);
  (void)troupe_actor_release(till);
  return code;
}

static troupe_code program(troupe_reply* reply) {
  char path[512];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
  packed result;
  if (size <= 0) return TROUPE_INTERNAL;
  path[size] = '\0';
  pack_result(&result);
  pack_text(&result, strrchr(path, '/') + 1);
  return troupe_reply_value(reply, packed_bytes(&result));
}

static troupe_code invoke(void* state, troupe_context* context, const char* method,
                          troupe_bytes arguments, troupe_reply* reply) {
  tally* self = state;
  unpacker from;
  int64_t by;
  if (strcmp(method, "Add") == 0) {
    if (!unpack_head(&from, arguments, 1) || !unpack_int(&from, &by)) return wrong_arguments(reply);
    self->sum += by;
    return yield_int(reply, self->sum);
  }
  if (strcmp(method, "Nothing") == 0) return TROUPE_OK;
  if (strcmp(method, "Pid") == 0) return yield_int(reply, getpid());
  if (strcmp(method, "Program") == 0) return program(reply);
  if (strcmp(method, "Fail") == 0) return fail(arguments, reply);
  if (strcmp(method, "SellAt") == 0) return sell_at(context, arguments, reply);
  if (strcmp(method, "Lingered") == 0) return yield_int(reply, self->lingered);
  if (strcmp(method, "RemainingMs") == 0)
    return yield_int(reply, troupe_context_remaining_ms(context));
  if (strcmp(method, "Linger") == 0) {
    const troupe_code slept = troupe_context_sleep(context, 60000);
    if (troupe_context_cancelled(context)) ++self->lingered;
    return slept;
  }
  return TROUPE_NOT_FOUND;
}

static troupe_code save(void* state, troupe_reply* reply) {
  troupe_bytes bytes;
  bytes.data = state;
  bytes.size = sizeof(tally);
  return troupe_reply_value(reply, bytes);
}

static troupe_code restore(void* state, troupe_bytes saved, troupe_reply* reply) {
  if (saved.size != sizeof(tally)) return wrong_arguments(reply);
  memcpy(state, saved.data, saved.size);
  return TROUPE_OK;
}

const troupe_actor_type tally_types[TALLY_TYPES] = {
    {sizeof(troupe_actor_type), "c.Tally", NULL, construct, invoke, free, save, restore},
};
