// Two counters in processes of their own, called through typed handles.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "daemons/troupe.h"

class Counter {
 public:
  explicit Counter(int start) : value_(start) {}
  int Add(int by) {
    if (by < 0) throw std::invalid_argument("a counter only counts up");
    return value_ += by;
  }
  int Value() const { return value_; }

 private:
  int value_;
};

template <>
struct troupe::ActorTraits<Counter> {
  static constexpr const char* kName = "Counter";
  using Constructor = troupe::Arguments<int>;
  static constexpr auto kMethods =
      std::tuple{troupe::Method{"Add", &Counter::Add}, troupe::Method{"Value", &Counter::Value}};
};

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
  troupe::Runtime runtime = OrDie(troupe::Init<Counter>());
  auto apples = OrDie(runtime.Spawn<Counter>({}, 0));
  auto pears = OrDie(runtime.Spawn<Counter>({}, 100));
  std::vector<troupe::Future<int>> sums;
  for (int i = 1; i <= 10; ++i)
    sums.push_back((i % 2 == 0 ? apples : pears).Call(&Counter::Add, i));
  for (const auto& sum : sums) (void)OrDie(sum.Get());
  std::printf("apples %d, pears %d\n", OrDie(apples.Call(&Counter::Value).Get()),
              OrDie(pears.Call(&Counter::Value).Get()));
  const troupe::Result<int> refused = apples.Call(&Counter::Add, -1).Get();
  std::printf("refused: %s\n", refused.ok() ? "no" : refused.error().ToString().c_str());
  if (!apples.Kill().ok()) return 1;
  const troupe::Result<int> gone = apples.Call(&Counter::Value).Get();
  std::printf("after the end: %s\n", gone.ok() ? "still there" : gone.error().ToString().c_str());
  return refused.ok() || gone.ok() ? 1 : 0;
}
