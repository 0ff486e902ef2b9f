#include "runtime/config.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/internal/config_node.h"

namespace troupe {

using internal::Quoted;

namespace {

// Remembers where the document begins that is parsed last.
class DocumentMark final : public YAML::EventHandler {
 public:
  YAML::Mark begin;

  void OnDocumentStart(const YAML::Mark& mark) override { begin = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {}
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {}
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {}
  void OnMapEnd() override {}
};

// The first document. Anything after it throws, so that no part of a file is ignored. (LoadAll
// would do this too, but on a text that begins with a comma it makes empty documents without end.)
YAML::Node LoadOnly(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentMark mark;
  if (parser.HandleNextDocument(mark) && parser.HandleNextDocument(mark)) {
    throw YAML::ParserException(mark.begin, "unexpected text; one mapping in one document is read");
  }
  return YAML::Load(text);
}

}  // namespace

struct ConfigMap::State {
  struct Problem {
    int line;
    int column;
    std::string text;
    friend auto operator<=>(const Problem&, const Problem&) = default;
  };
  struct Visited {
    const Node* node;
    std::string path;
    std::set<std::string> known;
    bool open = false;  // Its keys are the user's own.
  };

  std::string name;
  Node root;
  size_t nodes = 0;
  std::set<Problem> problems;                // A set: two reads of one key report it once.
  std::vector<std::unique_ptr<Node>> empty;  // Stand-ins for absent mappings.
  std::map<const Node*, Visited> visited;
  std::vector<ConfigKey> keys;
  std::set<std::string> recorded;  // Their paths.

  void Report(int line, int column, const std::string& path, std::string_view what) {
    std::string text = path.empty() ? std::string(what) : path + ": " + std::string(what);
    problems.insert({line, column, std::move(text)});
  }
  void Build(const YAML::Node& from, Node& to, const std::string& path, size_t depth);
  Visited& Visit(const Node* node, const std::string& path) {
    return visited.try_emplace(node, Visited{node, path, {}, false}).first->second;
  }
};

namespace {

std::string Join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

std::string Positioned(const std::string& name, int line, int column, std::string_view text) {
  std::ostringstream out;
  out << name << ':' << line << ':' << column << ": " << text;
  return out.str();
}

}  // namespace

// Copies yaml-cpp's tree: aliases are expanded under the node limit, duplicate keys are found,
// marks become 1-based.
void ConfigMap::State::Build(const YAML::Node& from, Node& to, const std::string& path,
                             size_t depth) {
  to.line = std::max(from.Mark().line, 0) + 1;
  to.column = std::max(from.Mark().column, 0) + 1;
  if (++nodes == kConfigNodesMax) Report(to.line, to.column, path, "too many values in one file");
  if (depth == kConfigDepthMax) Report(to.line, to.column, path, "nested too deeply");
  to.kind = Node::Kind::kNull;
  if (nodes >= kConfigNodesMax || depth >= kConfigDepthMax) return;
  if (from.IsScalar()) {
    to.kind = Node::Kind::kScalar;
    to.quoted = from.Tag() == "!" || from.Tag() == "tag:yaml.org,2002:str";
    to.scalar = from.Scalar();
  } else if (from.IsSequence()) {
    to.kind = Node::Kind::kList;
    for (const YAML::Node& element : from) {
      const std::string at = path + "[" + std::to_string(to.list.size()) + "]";
      Build(element, to.list.emplace_back(), at, depth + 1);
    }
  } else if (from.IsMap()) {
    to.kind = Node::Kind::kMap;
    for (const auto& pair : from) {
      const YAML::Node& key = pair.first;
      const int line = std::max(key.Mark().line, 0) + 1;
      const int column = std::max(key.Mark().column, 0) + 1;
      if (!key.IsScalar()) {
        Report(line, column, path, "a key must be a plain word");
        continue;
      }
      const std::string& name_of_key = key.Scalar();
      for (const Node::Entry& entry : to.entries) {
        if (entry.key != name_of_key) continue;
        Report(line, column, Join(path, name_of_key),
               "duplicate key, first given in line " + std::to_string(entry.line));
      }
      to.entries.push_back({name_of_key, line, column, {}});
      Node& value = to.entries.back().value;
      Build(pair.second, value, Join(path, name_of_key), depth + 1);
      if (value.kind == Node::Kind::kNull) {  // Nothing has no place of its own.
        value.line = line;
        value.column = column;
      }
    }
  }
}

std::string ConfigMap::PathOf(std::string_view key) const { return Join(path_, key); }

void ConfigMap::Report(const Node& at, const std::string& path, std::string_view what) const {
  state_->Report(at.line, at.column, path, what);
}

const ConfigMap::Node* ConfigMap::Find(std::string_view key, bool required) const {
  state_->Visit(node_, path_).known.emplace(key);
  for (const Node::Entry& entry : node_->entries) {
    if (entry.key == key) return &entry.value;
  }
  if (required) Report(*node_, PathOf(key), "missing required key");
  return nullptr;
}

bool ConfigMap::Has(std::string_view key) const { return Find(key, false) != nullptr; }

void ConfigMap::Record(std::string_view key, ConfigKey what) const {
  what.path = PathOf(key);
  if (!state_->recorded.insert(what.path).second) return;
  const State::Visited& visited = state_->Visit(node_, path_);
  what.pattern = Join(path_, visited.open ? "*" : key);
  for (size_t at = 0; (at = what.pattern.find('[', at)) != std::string::npos; ++at)
    what.pattern.erase(at + 1, what.pattern.find(']', at) - at - 1);
  for (const Node::Entry& entry : node_->entries) {
    if (entry.key != key) continue;
    what.line = entry.line;
    what.given = entry.value.scalar;
    for (const Node& item : entry.value.list)
      what.given += (what.given.empty() ? "" : ", ") + item.scalar;
    for (char& c : what.given) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) c = ' ';  // It is shown on one line.
    }
    break;
  }
  state_->keys.push_back(std::move(what));
}

std::vector<std::string> ConfigMap::Keys() const {
  std::vector<std::string> keys;
  state_->Visit(node_, path_).open = true;
  for (const Node::Entry& entry : node_->entries) {
    state_->Visit(node_, path_).known.insert(entry.key);
    keys.push_back(entry.key);
  }
  return keys;
}

// What a value of type T is called, and how a scalar becomes one.
template <>
struct ConfigMap::Typed<bool> {
  static constexpr std::string_view kName = "true or false";
  static std::optional<bool> From(const Node& node) {
    if (node.quoted) return std::nullopt;
    for (const std::string_view word : {"true", "True", "yes", "on"}) {
      if (node.scalar == word) return true;
    }
    for (const std::string_view word : {"false", "False", "no", "off"}) {
      if (node.scalar == word) return false;
    }
    return std::nullopt;
  }
  static std::string Show(bool value) { return value ? "true" : "false"; }
};

template <>
struct ConfigMap::Typed<std::string> {
  static constexpr std::string_view kName = "a string";
  static std::optional<std::string> From(const Node& node) { return node.scalar; }
  static std::string Show(const std::string& value) { return value; }
};

template <>
struct ConfigMap::Typed<int64_t> {
  static constexpr std::string_view kName = "an integer";
  static std::optional<int64_t> From(const Node& node) {
    int64_t value = 0;
    const char* end = node.scalar.data() + node.scalar.size();
    const auto [stop, error] = std::from_chars(node.scalar.data(), end, value);
    if (node.quoted || error != std::errc() || stop != end) return std::nullopt;
    return value;
  }
  static std::string Show(int64_t value) { return std::to_string(value); }
};

template <>
struct ConfigMap::Typed<double> {
  static constexpr std::string_view kName = "a number";
  static std::optional<double> From(const Node& node) {
    double value = 0;
    const char* end = node.scalar.data() + node.scalar.size();
    const auto [stop, error] = std::from_chars(node.scalar.data(), end, value);
    const bool whole = error == std::errc() && stop == end;
    if (node.quoted || !whole || !std::isfinite(value)) return std::nullopt;
    return value;
  }
  static std::string Show(double value) {
    std::ostringstream out;
    out << value;
    return out.str();
  }
};

template <>
struct ConfigMap::Typed<Duration> {
  static constexpr std::string_view kName = "a duration such as 500ms, 30s, 5m or 2h";
  static std::optional<Duration> From(const Node& node) {
    const Result<Duration> parsed = ParseDuration(node.scalar);
    if (!parsed.ok()) return std::nullopt;
    return *parsed;
  }
  static std::string Show(Duration value) { return internal::DurationText(value); }
};

template <class T>
T ConfigMap::Read(std::string_view key, const std::optional<T>& fallback,
                  const std::optional<Range<T>>& range) const {
  const Node* node = Find(key, !fallback.has_value());
  T instead = fallback.value_or(T{});
  ConfigKey asked;
  asked.type = Typed<T>::kName;
  asked.required = !fallback;
  if (fallback) asked.fallback = Typed<T>::Show(*fallback);
  if (range && range->min != Range<T>{}.min) asked.min = Typed<T>::Show(range->min);
  if (range && range->max != Range<T>{}.max) asked.max = Typed<T>::Show(range->max);
  Record(key, std::move(asked));
  if (node == nullptr) return instead;
  std::optional<T> value;
  if (node->kind == Node::Kind::kScalar) value = Typed<T>::From(*node);
  if (!value) {
    std::string got = Quoted(node->scalar);
    if (node->kind == Node::Kind::kNull) got = "nothing";
    if (node->kind == Node::Kind::kList) got = "a list";
    if (node->kind == Node::Kind::kMap) got = "a mapping";
    Report(*node, PathOf(key), "expected " + std::string(Typed<T>::kName) + ", got " + got);
    return instead;
  }
  if (range && (*value < range->min || *value > range->max)) {
    std::string what = *value < range->min ? "must be at least " + Typed<T>::Show(range->min)
                                           : "must be at most " + Typed<T>::Show(range->max);
    Report(*node, PathOf(key), what + ", got " + Quoted(node->scalar));
    return instead;
  }
  return *value;
}

std::string ConfigMap::String(std::string_view key,
                              const std::optional<std::string>& fallback) const {
  return Read<std::string>(key, fallback, std::nullopt);
}

std::string ConfigMap::Choice(std::string_view key, std::initializer_list<std::string_view> choices,
                              const std::optional<std::string>& fallback) const {
  const bool required = !fallback.has_value();
  ConfigKey asked;
  asked.type = "one word";
  asked.required = required;
  asked.fallback = fallback.value_or("");
  asked.choices.assign(choices.begin(), choices.end());
  Record(key, std::move(asked));
  std::string value = String(key, fallback);
  if (!Has(key) || std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  const std::vector<std::string> words(choices.begin(), choices.end());
  std::string what = "expected one of";
  for (const std::string& word : words) what += (&word == &words[0] ? " " : ", ") + word;
  what += ", got " + Quoted(value);
  if (const auto nearest = NearestWord(value, words)) what += "; did you mean " + *nearest + "?";
  if (required || !value.empty()) Fail(key, what);
  return value;
}

bool ConfigMap::Bool(std::string_view key, std::optional<bool> fallback) const {
  return Read<bool>(key, fallback, std::nullopt);
}

int64_t ConfigMap::Int(std::string_view key, std::optional<int64_t> fallback,
                       Range<int64_t> range) const {
  return Read<int64_t>(key, fallback, range);
}

double ConfigMap::Double(std::string_view key, std::optional<double> fallback,
                         Range<double> range) const {
  return Read<double>(key, fallback, range);
}

Duration ConfigMap::Span(std::string_view key, std::optional<Duration> fallback,
                         Range<Duration> range) const {
  return Read<Duration>(key, fallback, range);
}

int64_t ConfigMap::Bytes(std::string_view key, std::optional<int64_t> fallback,
                         Range<int64_t> range) const {
  const bool required = !fallback.has_value();
  ConfigKey asked;
  asked.type = "a size such as 512MiB, 4GiB or a number of bytes";
  asked.required = required;
  if (fallback) asked.fallback = std::to_string(*fallback);
  Record(key, std::move(asked));
  const std::string text = String(key, required ? std::nullopt : std::optional<std::string>("0"));
  if (!Has(key)) return fallback.value_or(0);
  const Result<int64_t> parsed = ParseBytes(text);
  if (!parsed.ok()) {
    Fail(key, parsed.error().message);
    return fallback.value_or(0);
  }
  if (*parsed < range.min || *parsed > range.max) {
    Fail(key, "must be between " + std::to_string(range.min) + " and " + std::to_string(range.max) +
                  " bytes, got " + Quoted(text));
  }
  return *parsed;
}

std::vector<std::string> ConfigMap::Strings(std::string_view key) const {
  ConfigKey asked;
  asked.type = "a list of strings";
  Record(key, std::move(asked));
  const Node* node = Find(key, false);
  if (node == nullptr) return {};
  if (node->kind == Node::Kind::kScalar) return {node->scalar};
  std::vector<std::string> strings;
  if (node->kind != Node::Kind::kList) Report(*node, PathOf(key), "expected a list of strings");
  for (const Node& element : node->list) {
    if (element.kind == Node::Kind::kScalar) {
      strings.push_back(element.scalar);
    } else {
      Report(element, PathOf(key), "expected a string in this list");
    }
  }
  return strings;
}

ConfigMap ConfigMap::Map(std::string_view key) const {
  ConfigKey asked;
  asked.type = "a mapping";
  Record(key, std::move(asked));
  const Node* node = Find(key, false);
  if (node != nullptr && node->kind == Node::Kind::kMap) return {state_, node, PathOf(key)};
  if (node != nullptr) Report(*node, PathOf(key), "expected a mapping");
  auto stand_in = std::make_unique<Node>();
  stand_in->line = node_->line;
  stand_in->column = node_->column;
  state_->empty.push_back(std::move(stand_in));
  return {state_, state_->empty.back().get(), PathOf(key)};
}

std::vector<ConfigMap> ConfigMap::List(std::string_view key) const {
  ConfigKey asked;
  asked.type = "a list of mappings";
  Record(key, std::move(asked));
  const Node* node = Find(key, false);
  if (node == nullptr) return {};
  std::vector<ConfigMap> maps;
  if (node->kind != Node::Kind::kList) Report(*node, PathOf(key), "expected a list of mappings");
  for (size_t i = 0; i < node->list.size(); ++i) {
    std::string path = PathOf(key) + "[" + std::to_string(i) + "]";
    const Node& element = node->list[i];
    if (element.kind == Node::Kind::kMap) {
      maps.push_back(ConfigMap(state_, &element, std::move(path)));
    } else {
      Report(element, path, "expected a mapping");
    }
  }
  return maps;
}

void ConfigMap::Fail(std::string_view key, std::string_view what) const {
  const Node* node = key.empty() ? nullptr : Find(key, false);
  Report(node != nullptr ? *node : *node_, key.empty() ? path_ : PathOf(key), what);
}

Result<ConfigDocument> ConfigDocument::Parse(std::string_view text, std::string name) {
  auto state = std::make_shared<ConfigMap::State>();
  state->name = std::move(name);
  if (text.size() > kConfigBytesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 state->name + ": larger than " + std::to_string(kConfigBytesMax) + " bytes"};
  }
  using Kind = ConfigMap::Node::Kind;
  try {
    state->Build(LoadOnly(std::string(text)), state->root, "", 0);
  } catch (const YAML::Exception& error) {
    return Error{ErrorCode::kInvalidArgument,
                 Positioned(state->name, std::max(error.mark.line, 0) + 1,
                            std::max(error.mark.column, 0) + 1, error.msg)};
  } catch (const std::exception& error) {
    return Error{ErrorCode::kInvalidArgument, state->name + ": " + error.what()};
  }
  if (state->root.kind == Kind::kScalar || state->root.kind == Kind::kList) {
    state->Report(state->root.line, state->root.column, "", "expected a mapping of keys to values");
  }
  return ConfigDocument(std::move(state));
}

Result<ConfigDocument> ConfigDocument::ParseFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kConfigBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof())) {
    return Error{ErrorCode::kNotFound,
                 path + ": cannot be read; check that the file exists and may be opened"};
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return Parse(text, path);
}

const std::vector<ConfigKey>& ConfigDocument::keys() const { return state_->keys; }

const std::string& ConfigDocument::name() const { return state_->name; }

ConfigMap ConfigDocument::Root() const { return {state_, &state_->root, ""}; }

Status ConfigDocument::Finish() const {
  std::set<ConfigMap::State::Problem> problems = state_->problems;
  for (const auto& [node, visited] : state_->visited) {
    for (const auto& entry : node->entries) {
      if (visited.known.contains(entry.key)) continue;
      std::string what = Join(visited.path, entry.key) + ": unknown key";
      const std::vector<std::string> known(visited.known.begin(), visited.known.end());
      const auto nearest = NearestWord(entry.key, known);
      if (nearest) what += "; did you mean " + *nearest + "?";
      problems.insert({entry.line, entry.column, std::move(what)});
    }
  }
  if (problems.empty()) return Status::Ok();
  std::string message;
  size_t shown = 0;
  for (const auto& problem : problems) {
    if (shown++ == kConfigProblemsMax) break;
    if (!message.empty()) message += '\n';
    message += Positioned(state_->name, problem.line, problem.column, problem.text);
  }
  if (problems.size() > kConfigProblemsMax) {
    message += "\nand " + std::to_string(problems.size() - kConfigProblemsMax) + " more";
  }
  return Error{ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace troupe
