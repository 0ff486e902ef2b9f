#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "autoscaler/config_help.h"

namespace troupe {
namespace {

// Keys stay in the order of reading, which is that of the documentation.
using Schema = nlohmann::ordered_json;

void SetLimit(Schema& value, const char* keyword, const std::string& limit) {
  double number = 0;
  const auto [end, error] = std::from_chars(limit.data(), limit.data() + limit.size(), number);
  if (error == std::errc() && end == limit.data() + limit.size()) value[keyword] = number;
}

Schema ValueSchema(const ConfigKey& key) {
  Schema value = Schema::object();
  if (const std::string_view help = HelpOfConfigKey(key.pattern); !help.empty())
    value["description"] = help;
  if (!key.fallback.empty()) value["default"] = key.fallback;
  if (!key.choices.empty()) {
    value["enum"] = key.choices;
  } else if (key.type == "an integer" || key.type == "a number") {
    value["type"] = key.type == "an integer" ? "integer" : "number";
    if (!key.fallback.empty()) value["default"] = Schema::parse(key.fallback);
    SetLimit(value, "minimum", key.min);
    SetLimit(value, "maximum", key.max);
  } else if (key.type == "true or false") {
    value["type"] = "boolean";
  } else if (key.type == "a list of strings") {  // One string is a list of one.
    value["type"] = {"array", "string"};
    value["items"]["type"] = "string";
  } else if (key.type.starts_with("a duration")) {
    value["type"] = {"string", "integer"};
    value["pattern"] = "^(0|[0-9]+(\\.[0-9]+)?(ns|us|ms|s|m|h|d))$";
  } else if (key.type.starts_with("a mapping, or")) {
    value["type"] = {"object", "string"};
  } else {  // A string may look like a number, and an amount of a resource may have a unit.
    value["type"] = {"string", "number", "boolean"};
  }
  return value;
}

Schema ObjectSchema() {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", Schema::object()}};
}

// Where the keys below this one go.
Schema& Inside(Schema& value) {
  return value.contains("items") && value["items"].contains("properties") ? value["items"] : value;
}

void Insert(Schema& root, const ConfigKey& key) {
  Schema* parent = &root;
  std::istringstream words(key.pattern);
  std::string name;
  std::string word;
  std::getline(words, name, '.');
  while (std::getline(words, word, '.')) {
    parent = &Inside((*parent)["properties"][name.substr(0, name.find('['))]);
    name = word;
  }
  Schema value = ValueSchema(key);
  if (key.type == "a mapping" || key.type == "a list of mappings") {
    value.erase("type");
    if (key.type == "a mapping") {
      value.update(ObjectSchema());
    } else {
      value["type"] = "array";
      value["items"] = ObjectSchema();
    }
  }
  if (name == "*") {  // The user's own.
    parent->erase("properties");
    (*parent)["additionalProperties"] = std::move(value);
    return;
  }
  (*parent)["properties"][name] = std::move(value);
  if (key.required) (*parent)["required"].push_back(name);
}

}  // namespace

std::string ClusterConfigSchema() {
  Schema root{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"title", "Cluster file of Troupe"}};
  root.update(ObjectSchema());
  for (const ConfigKey& key : ClusterConfigKeys()) Insert(root, key);
  root["required"] = {"pools"};  // At least one: the reader says so in its own words.
  root["properties"]["pools"]["minItems"] = 1;
  return root.dump(2) + "\n";
}

}  // namespace troupe
