// A plugin: an actor type that drivers of any language start by its name (docs/plugins.md).
#include <cstdint>
#include <stdexcept>

#include <troupe/plugin.h>

class Till {
 public:
  explicit Till(int64_t stock) : stock_(stock) {}
  int64_t Sell(int64_t amount) {
    if (amount > stock_) throw std::invalid_argument("there is not as much left");
    return stock_ -= amount;
  }

 private:
  int64_t stock_;
};
TROUPE_ACTOR(Till, (int64_t), Sell);

TROUPE_PLUGIN();
