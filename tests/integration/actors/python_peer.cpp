// What the tests of the Python package call, and what calls them: the worker of C++ actors, and
// with a command line a driver that calls an actor of Python by its name.
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <troupe/dynamic.h>
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
  void Nothing() const {}
  void Fail(const std::string& what) { throw std::runtime_error(what); }
  // Asks the Python actor of this name to scale the value.
  double ScaledBy(const std::string& name) const;
  // Through a handle that came as an argument.
  int64_t AddTo(const ActorHandle<Abacus>& other, int64_t by) const;

 private:
  int64_t value_;
};

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Abacus, (int64_t), Add, Mean, Join, Doubled, Bytes, Not, Nothing,
             Fail, ScaledBy, AddTo);

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
  const std::map<std::string, double> prices{{"a", 0.5}};
  std::cout << "total " << actor.CallNamed<double>("total", prices).Get().value() << "\n";
  std::cout << "nothing " << actor.CallNamed<void>("nothing").Get().ok() << "\n";
  std::cout << "error " << ErrorOf(actor.CallNamed<double>("fail", "on purpose").Get()) << "\n";
  std::cout << "unknown " << ErrorOf(actor.CallNamed<double>("nonsense").Get()) << "\n";
  std::cout << "other " << ErrorOf(actor.CallNamed<double>("upper", "text").Get()) << std::endl;
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
  return argc > 2 ? troupe::testing::Drive(*runtime, argv[2]) : 0;
}
