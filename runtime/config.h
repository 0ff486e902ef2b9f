// Strict reading of YAML configuration files.
//
// A file is parsed once into a ConfigDocument; the reader then asks for keys by name and type, with
// a default and a range. Asking declares a key as known, so the code that reads is the schema.
// Problems do not stop the reading: all of them are collected and Finish() reports them at once,
// each as
//   cluster.yaml:14:16: pools[1].max_price: expected a number, got "cheap"
// Reported are: a wrong type, a value out of range, a missing required key (at its parent), a
// duplicate key, a key that nobody asked for (with the nearest known one), and what the caller
// finds wrong itself (Fail). A read that fails returns the fallback or a zero value; results may
// only be used after Finish() succeeded.
//
// Thread: a document and its maps belong to one thread.
// Limits: kConfigBytesMax, kConfigNodesMax (aliases expanded), kConfigDepthMax, kConfigProblemsMax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"
#include "runtime/config_key.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kConfigBytesMax = size_t{1} << 20;
inline constexpr size_t kConfigNodesMax = 100'000;
inline constexpr size_t kConfigDepthMax = 32;
inline constexpr size_t kConfigProblemsMax = 20;  // Further ones are counted, not shown.

template <class T>
struct Range {
  T min = std::numeric_limits<T>::lowest();
  T max = std::numeric_limits<T>::max();
};

// "250us", "500ms", "1.5s", "5m", "2h", "1d", or "0". Never negative.
[[nodiscard]] Result<Duration> ParseDuration(std::string_view text);
// "4GiB", "512MiB", "16GB", "100B", or a plain number of bytes. Never negative.
[[nodiscard]] Result<int64_t> ParseBytes(std::string_view text);
namespace internal {
// At most 60 bytes of a value, printable, in quotes.
[[nodiscard]] std::string Quoted(std::string_view text);
// As ParseDuration reads it, in the largest unit that needs no fraction.
[[nodiscard]] std::string DurationText(Duration value);
// Of a plain word, or of a text in quotes.
[[nodiscard]] std::string JsonOfWord(std::string_view word, bool quoted);
}  // namespace internal
// The candidate that `word` was most likely meant to be, if one is near enough.
[[nodiscard]] std::optional<std::string> NearestWord(std::string_view word,
                                                     const std::vector<std::string>& candidates);

// One mapping of the file. Copies are cheap and refer to the same mapping. A fallback of nullopt
// makes a key required.
class ConfigMap {
 public:
  // Whether the key is there; declares it as known.
  [[nodiscard]] bool Has(std::string_view key) const;
  // Keys in the order of the file, for mappings whose keys are the user's own; declares them all as
  // known.
  [[nodiscard]] std::vector<std::string> Keys() const;

  std::string String(std::string_view key, const std::optional<std::string>& fallback = {}) const;
  std::string Choice(std::string_view key, std::initializer_list<std::string_view> choices,
                     const std::optional<std::string>& fallback = {}) const;
  bool Bool(std::string_view key, std::optional<bool> fallback = {}) const;
  int64_t Int(std::string_view key, std::optional<int64_t> fallback = {},
              Range<int64_t> range = {}) const;
  double Double(std::string_view key, std::optional<double> fallback = {},
                Range<double> range = {}) const;
  Duration Span(std::string_view key, std::optional<Duration> fallback = {},
                Range<Duration> range = {Duration::zero(), Duration::max()}) const;
  int64_t Bytes(std::string_view key, std::optional<int64_t> fallback = {},
                Range<int64_t> range = {0, std::numeric_limits<int64_t>::max()}) const;

  // A list of strings, or one string for a list of one. Absent: empty.
  std::vector<std::string> Strings(std::string_view key) const;
  // A mapping under `key`. Absent: an empty one, whose required keys are reported as missing here.
  ConfigMap Map(std::string_view key) const;
  // A list of mappings. Absent: empty.
  std::vector<ConfigMap> List(std::string_view key) const;

  // Whatever is under `key`, as JSON; an empty key: this mapping. Plain words are typed as
  // Kubernetes' tools do it: numbers, also octal ones, true, false and null. Absent: empty.
  // `type`: for people.
  std::string Json(std::string_view key, std::string_view type) const;
  // Reports a problem within such a value, at the last step of `inside` that is there; numbers are
  // places in a list.
  void FailInside(std::string_view key, const std::vector<std::string>& inside,
                  std::string_view what) const;

  // Reports a problem at the key's value, or at this mapping if the key is absent or empty.
  void Fail(std::string_view key, std::string_view what) const;
  // "pools[1]"; empty for the document itself.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  friend class ConfigDocument;
  struct Node;
  struct State;
  template <class T>
  struct Typed;

  ConfigMap(std::shared_ptr<State> state, const Node* node, std::string path)
      : state_(std::move(state)), node_(node), path_(std::move(path)) {}
  const Node* Find(std::string_view key, bool required) const;
  std::string PathOf(std::string_view key) const;
  void Record(std::string_view key, ConfigKey what) const;
  void Report(const Node& at, const std::string& path, std::string_view what) const;
  static std::string JsonOf(const Node& node);
  template <class T>
  T Read(std::string_view key, const std::optional<T>& fallback,
         const std::optional<Range<T>>& range) const;

  std::shared_ptr<State> state_;
  const Node* node_;
  std::string path_;
};

class ConfigDocument {
 public:
  // `name` stands in messages for the file. A syntax error is reported with line and column.
  static Result<ConfigDocument> Parse(std::string_view text, std::string name);
  static Result<ConfigDocument> ParseFile(const std::string& path);

  [[nodiscard]] ConfigMap Root() const;
  [[nodiscard]] const std::string& name() const;
  // What has been asked for, in the order of asking, each key once.
  [[nodiscard]] const std::vector<ConfigKey>& keys() const;
  // Ends the reading: success, or kInvalidArgument with one line per problem, in the order of the
  // file.
  [[nodiscard]] Status Finish() const;

 private:
  explicit ConfigDocument(std::shared_ptr<ConfigMap::State> state) : state_(std::move(state)) {}
  std::shared_ptr<ConfigMap::State> state_;
};

}  // namespace troupe
