// Patterns: what is refused, what they match, and where a text may be cut.
#include "runtime/tokenizer/pattern.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "runtime/tokenizer/unicode.h"

namespace foresail {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> words(const std::string& regex, const std::string& text) {
  const Pattern pattern = Pattern::from_regex(regex, "test");
  Matcher matcher(pattern);
  std::vector<std::string> found;
  size_t at = 0;
  while (const auto match = matcher.find(text, at)) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
  }
  return found;
}
using Words = std::vector<std::string>;

TEST(Pattern, CutsTextAsGpt2AndLlama3Do) {
  EXPECT_EQ(words(kGpt2, "It's  10000\n\n x!?\n"), (Words{"It", "'s", " ", " 10000", "\n\n", " x", "!?", "\n"}));
  EXPECT_EQ(words(kLlama3, "IT'S  10000\n\n x!?\n"), (Words{"IT", "'S", " ", " ", "100", "00", "\n\n", " x", "!?\n"}));
}

TEST(Pattern, WhiteSpaceIsUnicodesWhiteSpace) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    static const Pattern space = Pattern::from_regex(R"(\s)", "test"), other = Pattern::from_regex(R"([^\s])", "test"),
                         negated = Pattern::from_regex(R"(\S)", "test");
    static Matcher is_space(space), is_other(other), is_negated(negated);
    ASSERT_EQ(is_space.find(text, 0).has_value(), is_white_space(c)) << c;
    ASSERT_EQ(is_other.find(text, 0).has_value(), !is_white_space(c)) << c;
    ASSERT_EQ(is_negated.find(text, 0).has_value(), !is_white_space(c)) << c;
  }
  EXPECT_FALSE(is_white_space(0x180E));  // PCRE2's own \s has it
  EXPECT_TRUE(is_white_space(0x85));
}

TEST(Pattern, LettersIgnoreCaseAsUnicodeFoldsThem) {
  EXPECT_EQ(words("(?i:'s|'k)", "'S 's '\u017f '\u212a 'x"), (Words{"'S", "'s", "'\u017f", "'\u212a"}));
}

TEST(Pattern, UnderstandsRangesEscapesIntervalsAndScripts) {
  EXPECT_EQ(
      words(R"([a-c\-x]+|\u0041\x{42}|\p{Han}+|[\]\[]|\.{2,}|(?:d|e)f?)", "ab-x AB \u4e00\u4e8c\u3002 ] ... e df"),
      (Words{"ab-x", "AB", "\u4e00\u4e8c", "]", "...", "e", "df"}));
  EXPECT_EQ(words(R"((?<=a)b|c(?=d)|(?>e+)|.)", "ab cd"), (Words{"a", "b", " ", "c", "d"}));
}

TEST(Pattern, RefusesWhatMeansSomethingElseElsewhere) {
  const std::pair<const char*, const char*> refused[] = {
      {R"(\w+)", "escape '\\w'"},
      {R"(a\b)", "escape '\\b'"},
      {R"(\h)", "escape '\\h'"},
      {R"(\R)", "escape '\\R'"},
      {R"((a)\1)", "escape '\\1'"},
      {R"(^a)", "unescaped '^'"},
      {R"(a$)", "unescaped '$'"},
      {R"([[:alpha:]])", "class inside a class"},
      {R"([a-z&&[b]])", "intersection"},
      {R"([]a])", "begins with ']'"},
      {R"([a)", "without its ']'"},
      {R"((a)", "without its ')'"},
      {R"(a))", "without its '('"},
      {R"((?<n>a))", "group of this kind"},
      {R"((?i)a)", "group of this kind"},
      {R"((*FAIL)a)", "group of this kind"},
      {R"(a{1,3}+)", "interval with a suffix"},
      {R"(a{1,3}?)", "interval with a suffix"},
      {R"(a**)", "repeated quantifier"},
      {R"(a{2000})", "1000 times"},
      {R"(a{3,2})", "backwards"},
      {R"(a|)", "empty alternative"},
      {R"(\p{Alphabetic})", "character property"},
      {R"(\p{L)", "character property"},
      {R"((?i:uß))", "beyond ASCII"},
      {R"((?i:ss))", "ligature"},
      {R"((?i:[^a]))", "negated class"},
      {R"((?i:\p{Lu}))", "class of many characters"},
      {R"((?!a)*b)", "repeated look-around"},
      {R"(\x{110000})", "code point"},
      {R"(\ud800)", "code point"},
      {R"(a*)", "matches the empty text"},
      {R"(a|(?!b))", "matches the empty text"},
      {R"((?<=a*)b)", "PCRE2 does not take it"},
  };
  for (const auto& [regex, cause] : refused) {
    try {
      Pattern::from_regex(regex, "test");
      ADD_FAILURE() << regex << " is accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(cause), std::string::npos) << regex << ": " << error.what();
      EXPECT_EQ(error.exit(), Exit::bad_input);
    }
  }
  EXPECT_THROW(Pattern::from_regex(std::string(200, '(') + "a" + std::string(200, ')'), "test"), Error);
  EXPECT_THROW(Pattern::from_regex(std::string(20000, 'a'), "test"), Error);
}

TEST(Pattern, GivesUpOnTextThatMakesItExplode) {
  const Pattern pattern = Pattern::from_regex(R"((?:(?:a|b|ab)+)+c\p{Nd})", "test");
  Matcher matcher(pattern);
  std::string text;
  for (int i = 0; i < 60; ++i) text += "ab";
  text += "c";
  EXPECT_THROW(matcher.find(text, 0), Error);
  EXPECT_TRUE(matcher.find("abc1", 0).has_value());
}

CutProperties cut(const char* regex, char before, char after) {
  return Pattern::from_regex(regex, "test").cut_between(before, after);
}

TEST(Pattern, KnowsWhereNoMatchReachesAcross) {
  for (const char* family : {kGpt2, kLlama3}) {
    EXPECT_TRUE(cut(family, 'e', '\n').never_inside && cut(family, 'e', '\n').always_starts);
    EXPECT_TRUE(cut(family, '7', ' ').never_inside && cut(family, '7', ' ').always_starts);
    EXPECT_FALSE(cut(family, ' ', 'e').never_inside);
    EXPECT_FALSE(cut(family, 'a', 'b').never_inside);
    EXPECT_FALSE(cut(family, '\n', '\n').never_inside);
    EXPECT_FALSE(cut(family, ' ', '\n').never_inside);
  }
  EXPECT_FALSE(cut(kLlama3, '.', '\n').never_inside);  // [^\s\p{L}\p{N}]+[\r\n]*
  EXPECT_TRUE(cut(kGpt2, '.', '\n').never_inside);
}

TEST(Pattern, IsCarefulAboutCuts) {
  EXPECT_FALSE(cut(R"(\p{L}+\n?|\s+)", 'e', '\n').never_inside);           // the match may hold both
  EXPECT_FALSE(cut(R"(\p{L}+(?!\n)|\p{L}|\s+)", 'e', '\n').never_inside);  // looks at what follows
  EXPECT_FALSE(cut(R"(\p{L}+(?=\n\n)|\p{L}|\s+)", 'e', '\n').never_inside);
  EXPECT_FALSE(cut(R"(\p{L}+|(?<=e)\n|\s+)", 'e', '\n').never_inside);  // looks behind
  EXPECT_FALSE(cut(R"((?:\p{L}|\n)+)", 'e', '\n').never_inside);        // by repetition
  EXPECT_FALSE(cut(R"((?:e\p{M}*)\n|\s+)", 'e', '\n').never_inside);    // past what may be absent
  EXPECT_FALSE(cut(R"(\p{L}+|\s{2,})", 'e', '\n').always_starts);       // one is not enough
  EXPECT_FALSE(cut(R"(\p{L}+|\s+x)", 'e', '\n').always_starts);
  EXPECT_FALSE(cut(R"(\p{L}+)", 'e', '\n').always_starts);
  EXPECT_TRUE(cut(R"(\p{L}+|(?:\s)+)", 'e', '\n').always_starts);
}

}  // namespace
}  // namespace foresail
