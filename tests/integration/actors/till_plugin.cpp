// The plugin of the tests. What is only here no driver knows.
#include <troupe/plugin.h>
#include "tests/integration/actors/till.h"

namespace troupe::testing {

// Starts others of its plugin, whose types it knows.
class Foreman {
 public:
  std::string ProgramOfATill() const {
    Result<ActorHandle<Till>> till = Cluster::Current().Spawn<Till>({}, 1);
    if (!till.ok()) throw ActorError(till.error());
    return till->Call(&Till::Program).GetValue();
  }
  int64_t TripleElsewhere(int64_t x) const { return Cluster::Current().Run<&Triple>(x).GetValue(); }
};

class Described {
 public:
  std::string Hello() const { return "by hand"; }
};

std::string WhichProgram() { return ProgramName(); }

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Foreman, (), ProgramOfATill, TripleElsewhere);
TROUPE_TASK(troupe::testing::WhichProgram);

template <>
struct troupe::ActorTraits<troupe::testing::Described> {
  static constexpr const char* kName = "by.hand";
  using Constructor = troupe::Arguments<>;
  static constexpr auto kMethods =
      std::tuple{troupe::Method{"Hello", &troupe::testing::Described::Hello}};
};

TROUPE_PLUGIN(troupe::testing::Described);
