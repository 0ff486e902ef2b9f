#include "scheduler/labels.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

constexpr size_t kLabelsMax = 64;  // Of one node.

bool IsLabelCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_.:/-").find(c) != std::string_view::npos;
}

bool IsWord(std::string_view text) {
  return !text.empty() && text.size() <= kLabelBytesMax &&
         std::all_of(text.begin(), text.end(), IsLabelCharacter);
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Takes `word` off the end of `text`, if it stands there by itself.
bool TakeLastWord(std::string_view& text, std::string_view word) {
  if (text.size() <= word.size() || text.substr(text.size() - word.size()) != word) return false;
  if (text[text.size() - word.size() - 1] != ' ') return false;
  text = Trim(text.substr(0, text.size() - word.size()));
  return true;
}

Error BadTerm(std::string_view term) {
  return Error{ErrorCode::kInvalidArgument,
               "label selector: cannot read \"" + std::string(term.substr(0, kLabelBytesMax)) +
                   "\"; a term is key=value, key!=value, key in (a, b), key not in (a, b), key or "
                   "!key"};
}

// Splits at the commas that are not within parentheses.
std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      parts.push_back(Trim(text.substr(begin, i - begin)));
      begin = i + 1;
    } else if (text[i] == '(' || text[i] == ')') {
      depth += text[i] == '(' ? 1 : -1;
    }
  }
  return parts;
}

}  // namespace

bool LabelSelector::Term::Holds(const Labels& labels) const {
  const auto found = labels.find(key);
  if (found == labels.end()) return negated;
  if (values.empty()) return !negated;
  return std::binary_search(values.begin(), values.end(), found->second) != negated;
}

std::string LabelSelector::Term::ToString() const {
  if (values.empty()) return (negated ? "!" : "") + key;
  if (!in_list) return key + (negated ? "!=" : "=") + values[0];
  std::string text = key + (negated ? " not in (" : " in (");
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + values[i];
  return text + ")";
}

Result<LabelSelector::Term> LabelSelector::ParseTerm(std::string_view text) {
  Term term;
  std::string_view key = text;
  if (!text.empty() && text.back() == ')') {
    const size_t open = text.find('(');
    if (open == std::string_view::npos) return BadTerm(text);
    key = Trim(text.substr(0, open));
    const bool no_space = TakeLastWord(key, "notin");
    if (!no_space && !TakeLastWord(key, "in")) return BadTerm(text);
    term.negated = no_space || TakeLastWord(key, "not");
    term.in_list = true;
    for (const std::string_view value : Split(text.substr(open + 1, text.size() - open - 2))) {
      if (!IsWord(value)) return BadTerm(text);
      term.values.emplace_back(value);
    }
    if (term.values.size() > kSelectorValuesMax) {
      return Error{ErrorCode::kInvalidArgument, "label selector: a list has at most " +
                                                    std::to_string(kSelectorValuesMax) + " values"};
    }
    std::sort(term.values.begin(), term.values.end());
    term.values.erase(std::unique(term.values.begin(), term.values.end()), term.values.end());
  } else if (const size_t equals = text.find('='); equals != std::string_view::npos) {
    term.negated = equals > 0 && text[equals - 1] == '!';
    key = Trim(text.substr(0, term.negated ? equals - 1 : equals));
    std::string_view value = text.substr(equals + 1);
    if (!term.negated && !value.empty() && value.front() == '=') value.remove_prefix(1);
    if (!IsWord(Trim(value))) return BadTerm(text);
    term.values.emplace_back(Trim(value));
  } else if (!text.empty() && text.front() == '!') {
    term.negated = true;
    key = Trim(text.substr(1));
  }
  if (!IsWord(key)) return BadTerm(text);
  term.key = std::string(key);
  return term;
}

Result<LabelSelector> LabelSelector::Parse(std::string_view text) {
  LabelSelector selector;
  if (Trim(text).empty()) return selector;
  for (const std::string_view part : Split(text)) {
    Result<Term> term = ParseTerm(part);
    if (!term.ok()) return term.error();
    if (selector.terms_.size() == kSelectorTermsMax) {
      return Error{
          ErrorCode::kInvalidArgument,
          "label selector: at most " + std::to_string(kSelectorTermsMax) + " terms may be given"};
    }
    selector.terms_.push_back(std::move(*term));
  }
  selector.MakeText();
  return selector;
}

LabelSelector LabelSelector::And(const LabelSelector& other) const {
  LabelSelector both = *this;
  both.terms_.insert(both.terms_.end(), other.terms_.begin(), other.terms_.end());
  both.MakeText();
  return both;
}

// Terms in the order of their texts, each once.
void LabelSelector::MakeText() {
  const auto less = [](const Term& a, const Term& b) { return a.ToString() < b.ToString(); };
  const auto same = [](const Term& a, const Term& b) { return a.ToString() == b.ToString(); };
  std::sort(terms_.begin(), terms_.end(), less);
  terms_.erase(std::unique(terms_.begin(), terms_.end(), same), terms_.end());
  text_.clear();
  for (const Term& term : terms_) text_.append(text_.empty() ? "" : ", ").append(term.ToString());
}

bool LabelSelector::Matches(const Labels& labels) const {
  return std::all_of(terms_.begin(), terms_.end(),
                     [&](const Term& term) { return term.Holds(labels); });
}

std::string LabelSelector::Unmet(const Labels& labels) const {
  for (const Term& term : terms_) {
    if (!term.Holds(labels)) return term.ToString();
  }
  return "";
}

Status CheckLabels(const Labels& labels) {
  if (labels.size() > kLabelsMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "a node carries at most " + std::to_string(kLabelsMax) + " labels"};
  }
  for (const auto& [key, value] : labels) {
    if (IsWord(key) && IsWord(value)) continue;
    return Error{ErrorCode::kInvalidArgument,
                 "label \"" + key.substr(0, kLabelBytesMax) +
                     "\": keys and values have 1 to 128 letters, digits or any of _ . : / -"};
  }
  return Status::Ok();
}

}  // namespace troupe
