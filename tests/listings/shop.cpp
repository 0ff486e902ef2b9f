// A driver of the plugin that docs/plugins.md shows.
#include <cstdio>

#include <troupe/dynamic.h>
#include <troupe/troupe.h>

class Till {
 public:
  explicit Till(int64_t stock) : stock_(stock) {}
  int64_t Sell(int64_t amount) { return stock_ -= amount; }

 private:
  int64_t stock_;
};
TROUPE_ACTOR(Till, (int64_t), Sell);

int main() {
  troupe::Cluster cluster = troupe::Init().value();
  // @listing docs/plugins.md 2
  std::printf("%lld left, then %lld; %d\n", static_cast<long long>(left),
              static_cast<long long>(typed.Call(&Till::Sell, 1).Get().value()), square);
}
