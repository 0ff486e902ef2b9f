// A driver of a group, and of an actor of Python, on the cluster that TROUPE_ADDRESS names.
#include <cstdio>
#include <string>

#include <troupe/collectives.h>
#include <troupe/dynamic.h>
#include <troupe/troupe.h>

class Trainer {
 public:
  explicit Trainer(std::string group) : group_(std::move(group)) {}
  troupe::Result<int> Train(int steps) {
    auto group = troupe::CollectiveGroup::Enter(group_);
    if (!group.ok()) return group.error();
    return steps;
  }

 private:
  std::string group_;
};
TROUPE_ACTOR(Trainer, (std::string), Train);

static int Drive(troupe::Cluster& cluster) {
  // @listing docs/actors.md 1
  // @listing docs/actors.md 2
  std::printf("%zu members, loss %g\n", steps.size(), loss);
  return 0;
}

int main() {
  troupe::Cluster cluster = troupe::Init().value();
  return Drive(cluster);
}
