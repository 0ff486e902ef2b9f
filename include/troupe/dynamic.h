// Actors whose types this program was not built with: of a plugin, of another program, of Python.
//
//   auto till = troupe::SpawnDynamic(cluster, {.plugin = "/opt/shop/till.so"}, "Till", 10).value();
//   int sold = till.CallNamed<int>("Sell", 3).Get().value();
//
// Thread: any.
#pragma once

#include "actors/api/dynamic_handle.h"
