// A compiled pattern (PCRE2 with its JIT) and one thread's matching of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace foresail {

/// A stretch of bytes.
struct Span {
  size_t begin = 0, end = 0;
};

/// Between which characters a text may be cut without changing what the pattern finds in it.
struct CutProperties {
  bool never_inside = false;   ///< no match holds both, nor does one that ends before the cut look beyond it
  bool always_starts = false;  ///< besides, a match begins at the second
};

/// Immutable; shared by threads.
class Pattern {
 public:
  /// `regex` in Oniguruma's dialect (pattern_syntax.h). Throws bad_input naming `source` if it is not understood, or if it
  /// matches the empty text.
  static Pattern from_regex(std::string_view regex, const std::string& source);
  /// Exactly this text, which is not empty.
  static Pattern from_literal(std::string_view text, const std::string& source);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// A cut between the ASCII characters `before` and `after`.
  CutProperties cut_between(char before, char after) const;

 private:
  friend class Matcher;
  struct State;
  explicit Pattern(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Scratch memory of one thread for one pattern, which must outlive it.
class Matcher {
 public:
  explicit Matcher(const Pattern& pattern);
  ~Matcher();
  Matcher(Matcher&&) noexcept;

  /// The first match at or after byte `from` of valid UTF-8. Throws bad_input if the pattern needs too much memory or
  /// too many attempts for this text.
  std::optional<Span> find(std::string_view text, size_t from);

 private:
  const Pattern::State* pattern_;
  pcre2_real_match_data_8* data_ = nullptr;
  pcre2_real_match_context_8* context_ = nullptr;
  pcre2_real_jit_stack_8* stack_ = nullptr;
};

}  // namespace foresail
