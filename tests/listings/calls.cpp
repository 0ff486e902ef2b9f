// What a driver can do with calls. It is built, and not run: there is no shop here.
#include <cstdio>
#include <string>
#include <vector>

#include <troupe/dynamic.h>
#include <troupe/python.h>
#include <troupe/troupe.h>

class Counter {
 public:
  int Add(int amount) { return total_ += amount; }

 private:
  int total_ = 0;
};
TROUPE_ACTOR(Counter, (), Add);

class Reader {
 public:
  int Read() { return 0; }
};
TROUPE_ACTOR(Reader, (), Read);

static int Square(int number) { return number * number; }
TROUPE_TASK(Square);

static void Use(const troupe::Result<int>& result) { std::printf("%d\n", result.value()); }

int main() {
  troupe::Cluster cluster = troupe::Init().value();
  auto counter = cluster.Spawn<Counter>({}).value();
  std::vector<troupe::Future<int>> futures;
  for (int i = 0; i < 4; ++i) futures.push_back(counter.Call(&Counter::Add, i));
  // @listing docs/actors.md 3
  // @listing docs/actors.md 4
  // @listing docs/actors.md 5
}
