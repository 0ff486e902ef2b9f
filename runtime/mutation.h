// Mutations: places where code is wrong on purpose, so that a test shows that it would notice.
//
//   if (answered > process.order || TROUPE_MUTATED("PT-1")) missing.push_back(name);
//
// Only a test that compiles the source itself, with TROUPE_MUTATIONS, has them; everywhere else the
// macro is `false`.
// Thread: the mutation is the thread's.
#pragma once

#ifdef TROUPE_MUTATIONS

#include <string_view>

namespace troupe {

inline thread_local std::string_view active_mutation;  // Empty: none.

// Active while this lives.
class Mutated {
 public:
  explicit Mutated(std::string_view what) { active_mutation = what; }
  ~Mutated() { active_mutation = {}; }
  Mutated(const Mutated&) = delete;
  Mutated& operator=(const Mutated&) = delete;
};

}  // namespace troupe

#define TROUPE_MUTATED(what) (::troupe::active_mutation == (what))

#else

#define TROUPE_MUTATED(what) false

#endif
