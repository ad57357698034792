#include "runtime/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <bitset>
#include <new>
#include <utility>
#include <vector>

#include "core/error.h"
#include "runtime/tokenizer/pattern_syntax.h"

namespace foresail {
namespace {

constexpr uint32_t kMatchLimit = 50'000'000;  // attempts of one search: more only happens to patterns that explode
constexpr size_t kStackStartBytes = size_t{32} << 10, kStackMostBytes = size_t{16} << 20;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return "error " + std::to_string(code);
  return reinterpret_cast<const char*>(text);
}

using Code = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;

Code compile_pcre(const std::string& pcre, uint32_t options, const std::string& source) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(), PCRE2_UTF | PCRE2_UCP | options,
                          &error, &place, context.get()),
            &pcre2_code_free);
  if (!code) {
    throw_bad_input(source + ": the pattern", "PCRE2 does not take it: " + message_of(error),
                    "use a pattern that PCRE2 understands");
  }
  return code;
}

using AsciiSet = std::bitset<128>;

/// The ASCII characters that an atom consumes; all of them for a look-ahead, which may look at any.
AsciiSet ascii_of(const PatternAtom& atom, const std::string& source) {
  if (atom.look) return AsciiSet().set();
  const uint32_t options = PCRE2_ANCHORED | PCRE2_ENDANCHORED | (atom.caseless ? PCRE2_CASELESS : 0);
  const Code code = compile_pcre(atom.pcre, options, source);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create(1, nullptr),
                                                                                 &pcre2_match_data_free);
  if (!data) throw std::bad_alloc();
  AsciiSet set;
  for (unsigned char c = 0; c < 128; ++c) set[c] = pcre2_match(code.get(), &c, 1, 0, 0, data.get(), nullptr) >= 0;
  return set;
}

}  // namespace

struct Pattern::State {
  Code code{nullptr, &pcre2_code_free};
  PatternSyntax syntax;
  std::vector<AsciiSet> ascii;  ///< of every atom
  std::string source;
  bool jit = false;
};

Pattern::Pattern(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->code = compile_pcre(state_->syntax.pcre, 0, state_->source);
  uint32_t matches_empty = 0;
  pcre2_pattern_info(state_->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    throw_bad_input(state_->source + ": the pattern", "it matches the empty text",
                    "let every alternative take a character");
  }
  state_->jit = pcre2_jit_compile(state_->code.get(), PCRE2_JIT_COMPLETE) == 0;  // without: slower, the same matches
}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

Pattern Pattern::from_regex(std::string_view regex, const std::string& source) {
  auto state = std::make_unique<State>();
  state->source = source;
  state->syntax = parse_pattern(regex, source);
  for (const PatternAtom& atom : state->syntax.atoms) state->ascii.push_back(ascii_of(atom, source));
  return Pattern(std::move(state));
}

Pattern Pattern::from_literal(std::string_view text, const std::string& source) {
  auto state = std::make_unique<State>();
  state->source = source;
  state->syntax.pcre = pcre_literal(text);
  state->syntax.looks_far = true;  // no atoms are known: never cut
  return Pattern(std::move(state));
}

CutProperties Pattern::cut_between(char before, char after) const {
  const PatternSyntax& syntax = state_->syntax;
  if (syntax.looks_far) return {};
  const auto takes = [&](int atom, char c) {
    return state_->ascii[static_cast<size_t>(atom)][static_cast<unsigned char>(c) & 127U];
  };
  const auto takes_after = [&](int atom) { return takes(atom, after); };
  for (size_t i = 0; i < syntax.atoms.size(); ++i) {
    const PatternAtom& atom = syntax.atoms[i];
    if (atom.look || !takes(static_cast<int>(i), before)) continue;
    if (std::any_of(atom.follow.begin(), atom.follow.end(), takes_after)) return {};
  }
  const auto& whole = syntax.whole_alternatives;
  return {.never_inside = true, .always_starts = std::any_of(whole.begin(), whole.end(), takes_after)};
}

Matcher::Matcher(const Pattern& pattern)
    : pattern_(pattern.state_.get()),
      data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(kStackStartBytes, kStackMostBytes, nullptr)) {
  ensure(data_ != nullptr && context_ != nullptr, "PCRE2 has memory for a match");
  pcre2_set_match_limit(context_, kMatchLimit);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

Matcher::~Matcher() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

Matcher::Matcher(Matcher&& other) noexcept
    : pattern_(other.pattern_),
      data_(std::exchange(other.data_, nullptr)),
      context_(std::exchange(other.context_, nullptr)),
      stack_(std::exchange(other.stack_, nullptr)) {}

std::optional<Span> Matcher::find(std::string_view text, size_t from) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found =
      pattern_->jit
          ? pcre2_jit_match(pattern_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, data_, context_)
          : pcre2_match(pattern_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, data_, context_);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) {
    throw_bad_input(pattern_->source + ": the pattern", "PCRE2 gave up on this text: " + message_of(found),
                    "use a pattern that looks back less, or shorter documents");
  }
  const PCRE2_SIZE* const place = pcre2_get_ovector_pointer(data_);
  return Span{place[0], place[1]};
}

}  // namespace foresail
