// Actors and tasks of Python that a C++ program starts by "module:name", and calls.
//
//   const troupe::PythonProgram python{.path = "/opt/shop"};
//   auto till = troupe::SpawnPython(cluster, {}, python, "shop:Till", 10).value();
//   int sold = till.CallNamed<int>("sell", 3).Get().value();
//
// Thread: any.
#pragma once

#include "actors/api/python_program.h"
