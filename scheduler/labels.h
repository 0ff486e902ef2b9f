// Which nodes a request accepts, by their labels: `zone=a, market!=spot, gpu in (a100, h100), !old`
//
// A selector is a list of terms that must all hold. A term is one of
//   key=value   key!=value   key in (a, b)   key not in (a, b)   key   !key
// and, as in Kubernetes, != and `not in` also hold where the key is absent.
// Thread: a value type.
// Limits: kSelectorTermsMax terms, kSelectorValuesMax values in a list, keys and values of
// kLabelBytesMax bytes.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kSelectorTermsMax = 32;
inline constexpr size_t kSelectorValuesMax = 64;
inline constexpr size_t kLabelBytesMax = 128;

using Labels = std::map<std::string, std::string>;

class LabelSelector {
 public:
  // Accepts every node.
  LabelSelector() = default;
  // An error names the term that cannot be read and what a term looks like.
  static Result<LabelSelector> Parse(std::string_view text);
  // Both must hold. The limits are those of Parse: twice as many terms may come of it.
  [[nodiscard]] LabelSelector And(const LabelSelector& other) const;

  [[nodiscard]] bool Matches(const Labels& labels) const;
  // The first term that does not hold, as text; empty if all do.
  [[nodiscard]] std::string Unmet(const Labels& labels) const;
  [[nodiscard]] bool empty() const { return terms_.empty(); }
  // Reads back as the same selector; equal selectors have equal texts.
  [[nodiscard]] const std::string& text() const { return text_; }

  friend bool operator==(const LabelSelector& a, const LabelSelector& b) {
    return a.text_ == b.text_;
  }

 private:
  struct Term {
    std::string key;
    bool negated = false;
    std::vector<std::string> values;  // Sorted; empty: the key's presence is what counts.
    bool in_list = false;             // How it was written.

    [[nodiscard]] bool Holds(const Labels& labels) const;
    [[nodiscard]] std::string ToString() const;
  };

  static Result<Term> ParseTerm(std::string_view text);
  void MakeText();

  std::vector<Term> terms_;
  std::string text_;
};

// Whether a node may carry them: keys and values of letters, digits and _ . : / - within the
// limits.
[[nodiscard]] Status CheckLabels(const Labels& labels);

}  // namespace troupe
