/* A driver in C: starts a Till of the plugin that its argument names and sells from it. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/c.h>

/* MessagePack of [1, 71, [n]], the arguments of a call with one number below 128. */
#define ARGUMENTS(n) \
  { 0x93, 1, 71, 0x91, (n) }

static void or_die(troupe_code code, const troupe_error* error) {
  if (code == TROUPE_OK) return;
  fprintf(stderr, "%s\n", troupe_error_message(error));
  exit(1);
}

int main(int argc, char** argv) {
  const unsigned char ten[] = ARGUMENTS(10);
  const unsigned char sold[2][5] = {ARGUMENTS(3), ARGUMENTS(8)};
  const troupe_bytes stock = {ten, sizeof ten};
  troupe_runtime* runtime = NULL;
  troupe_actor* till = NULL;
  troupe_error* error = NULL;
  char options[1024];
  int i;
  or_die(troupe_init(NULL, NULL, 0, &runtime, &error), error);
  (void)snprintf(options, sizeof options, "{\"plugin\": \"%s\"}", argc > 1 ? argv[1] : "");
  or_die(troupe_spawn(runtime, "Till", stock, options, &till, &error), error);
  for (i = 0; i < 2; ++i) {
    const troupe_bytes amount = {sold[i], sizeof sold[i]};
    troupe_future* left = NULL;
    troupe_bytes result;
    or_die(troupe_call(till, "Sell", amount, 5000, 0, &left, &error), error);
    if (troupe_future_get(left, 10000, &result, &error) == TROUPE_OK) {
      /* [1, 72, [n]] */
      printf("sold %d, left %d\n", sold[i][4], ((const unsigned char*)result.data)[4]);
    } else {
      printf("%s: %s\n", troupe_error_type(error), troupe_error_message(error));
      (void)troupe_error_release(error);
    }
    (void)troupe_future_release(left);
  }
  (void)troupe_actor_release(till);
  or_die(troupe_shutdown(runtime, 5000, &error), error);
  return 0;
}
