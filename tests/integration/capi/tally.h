/* The actor type in C of the tests: in a plugin, and in a program. */
#pragma once

#include <troupe/c.h>

enum { TALLY_TYPES = 1 };
extern const troupe_actor_type tally_types[TALLY_TYPES];
