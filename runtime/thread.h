// What the runtime asks of the kernel for its threads.
#pragma once

#include <string>

namespace troupe {

// As tools show it; the kernel keeps the first 15 characters.
void NameThisThread(const std::string& name);

// For threads that react and do little: messages, timers, links. Asks for short slices of CPU, so
// that the scheduler lets the thread in soon after it is woken even if others compute; its share of
// the CPU stays what it was. Threads it starts later inherit this. Needs no privilege; kernels
// before Linux 6.12 ignore it.
void PreferLowLatency();

// For threads that move much: slices of the usual length again, where the caller's are short.
void PreferThroughput();

}  // namespace troupe
