// What the tests of the Python package call, and what calls them: the worker of C++ actors, and
// with a command line a driver that calls an actor of Python by its name, or with an interpreter
// and a path one that starts actors and tasks of Python.
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <troupe/dynamic.h>
#include <troupe/python.h>
#include <troupe/troupe.h>

namespace troupe::testing {

class Abacus {
 public:
  explicit Abacus(int64_t start) : value_(start) {
    if (start < 0) throw std::invalid_argument("start is negative");
  }
  int64_t Add(int64_t by) { return value_ += by; }
  double Mean(const std::vector<double>& values) const;
  std::string Join(const std::vector<std::string>& parts, const std::string& by) const;
  std::map<std::string, int64_t> Doubled(std::map<std::string, int64_t> values) const;
  std::string Bytes() const { return {"\xff\x00\x80", 3}; }
  bool Not(bool value) const { return !value; }
  std::vector<int32_t> Count(int32_t to) const;
  int64_t Sum(const std::vector<int32_t>& values) const;
  std::vector<std::vector<double>> Rows(std::vector<std::vector<double>> rows) const {
    return rows;
  }
  std::vector<uint8_t> Raw(std::vector<uint8_t> bytes) const { return bytes; }
  // Blocks its thread until so many calls are in it.
  int64_t Meet(int64_t wanted);
  void Nothing() const {}
  void Fail(const std::string& what) { throw std::runtime_error(what); }
  // Asks the Python actor of this name to scale the value.
  double ScaledBy(const std::string& name) const;
  // Through a handle that came as an argument.
  int64_t AddTo(const ActorHandle<Abacus>& other, int64_t by) const;

 private:
  int64_t value_;
  std::mutex mu_;
  std::condition_variable changed_;
  int64_t here_ = 0;
};

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Abacus, (int64_t), Add, Mean, Join, Doubled, Bytes, Not, Count, Sum,
             Rows, Raw, Meet, Nothing, Fail, ScaledBy, AddTo);

namespace troupe::testing {

double Abacus::Mean(const std::vector<double>& values) const {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::string Abacus::Join(const std::vector<std::string>& parts, const std::string& by) const {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : by) + part;
  return all;
}

std::vector<int32_t> Abacus::Count(int32_t to) const {
  std::vector<int32_t> numbers(static_cast<size_t>(to));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

int64_t Abacus::Meet(int64_t wanted) {
  std::unique_lock lock(mu_);
  ++here_;
  changed_.notify_all();
  (void)changed_.wait_for(lock, std::chrono::seconds(60), [&] { return here_ >= wanted; });
  return here_;
}

int64_t Abacus::Sum(const std::vector<int32_t>& values) const {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::map<std::string, int64_t> Abacus::Doubled(std::map<std::string, int64_t> values) const {
  for (auto& [key, value] : values) value *= 2;
  return values;
}

double Abacus::ScaledBy(const std::string& name) const {
  const DynamicHandle scale = FindDynamic(Cluster::Current(), name).value();
  return scale.CallNamed<double>("scale", value_).GetValue();
}

int64_t Abacus::AddTo(const ActorHandle<Abacus>& other, int64_t by) const {
  return other.Call(&Abacus::Add, by).GetValue();
}

namespace {

std::string ErrorOf(const Result<double>& result) {
  return result.ok() ? "no error" : result.error().ToString();
}

int Drive(Cluster& runtime, const std::string& name) {
  const DynamicHandle actor = FindDynamic(runtime, name).value();
  std::cout << "scale " << actor.CallNamed<double>("scale", 7).Get().value() << "\n";
  std::cout << "upper " << actor.CallNamed<std::string>("upper", "text").Get().value() << "\n";
  const std::vector<int64_t> numbers{3, 1, 2};
  const auto ordered = actor.CallNamed<std::vector<int64_t>>("ordered", numbers).Get();
  for (const int64_t n : ordered.value()) std::cout << "ordered " << n << "\n";
  const std::vector<float> many(2'000'000, 0.5F);
  const auto scaled = actor.CallNamed<std::vector<float>>("doubled", many).Get().value();
  std::cout << "doubled " << scaled.size() << " of " << scaled.back() << "\n";
  const auto value = actor.CallNamed<double>("scale", 2);
  std::cout << "later " << actor.CallNamed<double>("scale", value).Get().value() << "\n";
  const std::map<std::string, double> prices{{"a", 0.5}};
  std::cout << "total " << actor.CallNamed<double>("total", prices).Get().value() << "\n";
  std::cout << "nothing " << actor.CallNamed<void>("nothing").Get().ok() << "\n";
  std::cout << "error " << ErrorOf(actor.CallNamed<double>("fail", "on purpose").Get()) << "\n";
  std::cout << "unknown " << ErrorOf(actor.CallNamed<double>("nonsense").Get()) << "\n";
  std::cout << "other " << ErrorOf(actor.CallNamed<double>("upper", "text").Get()) << std::endl;
  return 0;
}

// Starts what the Python module `shop` has: a class as an actor, functions as tasks.
int StartPython(Cluster& cluster, const PythonProgram& python) {
  const DynamicHandle till =
      SpawnPython(cluster, {.name = "till"}, python, "shop:Till", "Ada", 40).value();
  std::cout << "sold " << till.CallNamed<int>("sell", 2).Get().value() << "\n";
  const std::vector<double> prices(1000, 0.5);
  std::cout << "sum " << RunPython<double>(cluster, {}, python, "shop:total", prices).Get().value()
            << "\n";
  std::vector<Future<int64_t>> squares;
  for (int i = 0; i < 20; ++i)
    squares.push_back(RunPython<int64_t>(cluster, {}, python, "shop:Maths.square", i));
  std::cout << "last " << WhenAll(squares).Get().value().back() << "\n";
  const auto later = RunPython<int64_t>(cluster, {}, python, "shop:Maths.square", squares[2]);
  std::cout << "later " << later.Get().value() << "\n";
  std::cout << "none " << RunPython<void>(cluster, {}, python, "shop:nothing").Get().ok() << "\n";
  const auto failed = [&](const std::string& name) {
    return ErrorOf(RunPython<double>(cluster, {}, python, name).Get());
  };
  std::cout << "raised " << failed("shop:fail") << "\n";
  std::cout << "nowhere " << failed("no_such_module:f") << "\n";
  std::cout << "unknown " << failed("shop:nobody") << "\n";
  std::cout << "constant " << failed("shop:LIMIT") << "\n";
  const auto refused = SpawnPython(cluster, {}, python, "shop:Till", "Ada", -1);
  std::cout << "refused " << (refused.ok() ? "no error" : refused.error().ToString()) << "\n";
  const auto missing = SpawnPython(cluster, {}, python, "shop:Nobody");
  std::cout << "missing " << (missing.ok() ? "no error" : missing.error().ToString()) << std::endl;
  return 0;
}

}  // namespace
}  // namespace troupe::testing

int main(int argc, char** argv) {
  troupe::InitOptions options;
  if (argc > 1) options.address = argv[1];
  troupe::Result<troupe::Cluster> runtime = troupe::Init(options);
  if (!runtime.ok()) {
    std::cerr << runtime.error().ToString() << std::endl;
    return 1;
  }
  if (argc > 3) return troupe::testing::StartPython(*runtime, {argv[2], argv[3]});
  return argc > 2 ? troupe::testing::Drive(*runtime, argv[2]) : 0;
}
