#include "tests/integration/capi/tally.h"

TROUPE_C_PLUGIN(tally_types, TALLY_TYPES);
