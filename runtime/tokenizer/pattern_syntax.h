// Reads the regular expression of a tokenizer.json (Oniguruma's Ruby dialect), accepts only what PCRE2 can be told to do
// exactly the same way, and notes which characters can follow each other inside one match (Glushkov's construction).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace foresail {

/// One place of a pattern that consumes a character.
struct PatternAtom {
  std::string pcre;  ///< a character or a class in PCRE2's dialect
  bool caseless = false;
  bool look = false;        ///< a look-ahead of one character instead: consumes nothing
  std::vector<int> follow;  ///< atoms that may come next in a match (a superset)
};

struct PatternSyntax {
  std::string pcre;  ///< for PCRE2 with UTF and UCP
  std::vector<PatternAtom> atoms;
  /// Atoms that alone, or repeated, are a whole alternative: any text that begins with such a character matches.
  std::vector<int> whole_alternatives;
  bool looks_far = false;  ///< looks behind, or ahead by more than one character
};

/// Throws bad_input naming `source`, the place and a mend for anything that is not understood.
PatternSyntax parse_pattern(std::string_view pattern, const std::string& source);

/// PCRE2 text for exactly these characters.
std::string pcre_literal(std::string_view text);

}  // namespace foresail
