// Two counters in processes of their own, on different nodes if there are two; a shop that calls
// them; tasks. The same program is driver and worker.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <troupe/troupe.h>

class Counter {
 public:
  explicit Counter(int start) : value_(start) {}
  int Add(int by) {
    if (by < 0) throw std::invalid_argument("a counter only counts up");
    return value_ += by;
  }
  int Value() const { return value_; }
  std::string Node() const { return std::getenv("TROUPE_WORKER_NODE"); }

 private:
  int value_;
};
TROUPE_ACTOR(Counter, (int), Add, Value, Node);

// Handles travel in messages.
class Shop {
 public:
  int Total(const troupe::ActorHandle<Counter>& apples,
            const troupe::ActorHandle<Counter>& pears) const {
    return apples.Call(&Counter::Value).GetValue() + pears.Call(&Counter::Value).GetValue();
  }
};
TROUPE_ACTOR(Shop, (), Total);

int Square(int x) { return x * x; }
TROUPE_TASK(Square);

namespace {

template <class T>
T OrDie(troupe::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().ToString().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

}  // namespace

int main() {
  troupe::Cluster cluster = OrDie(troupe::Init());
  auto apples = OrDie(cluster.Spawn<Counter>({.strategy = "spread"}, 0));
  auto pears = OrDie(cluster.Spawn<Counter>({.strategy = "spread"}, 100));
  std::printf("on one node: %s\n",
              OrDie(apples.Call(&Counter::Node).Get()) == OrDie(pears.Call(&Counter::Node).Get())
                  ? "yes"
                  : "no");
  std::vector<troupe::Future<int>> sums;
  for (int i = 1; i <= 10; ++i)
    sums.push_back((i % 2 == 0 ? apples : pears).Call(&Counter::Add, i));
  (void)OrDie(troupe::WhenAll(sums).Get());
  auto shop = OrDie(cluster.Spawn<Shop>({}));
  std::printf("apples %d, pears %d, together %d\n", OrDie(apples.Call(&Counter::Value).Get()),
              OrDie(pears.Call(&Counter::Value).Get()),
              OrDie(shop.Call(&Shop::Total, apples, pears).Get()));
  std::printf("a task: %d\n", OrDie(cluster.Run<&Square>(12).Get()));
  const troupe::Result<int> refused = apples.Call(&Counter::Add, -1).Get();
  std::printf("refused: %s\n", refused.ok() ? "no" : refused.error().message.c_str());
  if (!apples.Kill("sold out").ok()) return 1;
  const troupe::Result<int> gone = apples.Call(&Counter::Value).Get();
  std::printf("after the end: %s\n",
              gone.ok() ? "still there" : troupe::ErrorCodeName(gone.error().code).data());
  return refused.ok() || gone.ok() ? 1 : 0;
}
