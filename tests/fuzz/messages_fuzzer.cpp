// libFuzzer target over the decoders of all messages: build with the clang preset, then run
// build/clang/tests/messages_fuzzer CORPUS_DIR.
#include <cstdlib>

#include "tests/fuzz/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view frame(reinterpret_cast<const char*>(data), size);
  troupe::fuzz::ForEachMessage([&](auto message) {
    using T = typename decltype(message)::Type;
    if (!troupe::fuzz::RefusedOrStable<T>(message.type, frame, message.numbers)) std::abort();
  });
  return 0;
}
