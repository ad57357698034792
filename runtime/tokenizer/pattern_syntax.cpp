#include "runtime/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "core/error.h"
#include "runtime/tokenizer/unicode.h"

namespace foresail {
namespace {

constexpr int kDepthLimit = 50;
constexpr size_t kLengthLimit = 16384;
constexpr int kRepeatLimit = 1000;

// White_Space and its complement as ranges inside a class. PCRE2's \s also has U+180E, which lost the property.
constexpr const char* kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";

constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                            "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                            "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
constexpr std::string_view kScripts[] = {"Arabic", "Cyrillic", "Devanagari", "Greek", "Han", "Hangul",
                                         "Hebrew", "Hiragana", "Katakana",   "Latin", "Thai"};

template <size_t N>
bool is_one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string character(uint32_t code_point) { return fmt::format("\\x{{{:x}}}", code_point); }

/// A part of the pattern as Glushkov's construction sees it.
struct Fragment {
  std::vector<int> first, last;
  bool nullable = false;
  int only_atom = -1;   ///< the one atom that this is, perhaps repeated
  uint32_t letter = 0;  ///< under (?i:...): the literal that this is, not repeated; 0: something else
};

class PatternParser {
 public:
  PatternParser(std::string_view pattern, const std::string& source) : text_(pattern), source_(source) {}

  PatternSyntax parse() {
    if (text_.size() > kLengthLimit || valid_utf8_prefix(text_) != text_.size()) {
      refuse("is longer than 16 KiB or not UTF-8", "use a pattern that is one");
    }
    alternatives(0);
    if (!at_end()) refuse("has a ')' without its '('", "escape it");
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(const std::string& cause, const std::string& mend) const {
    throw_bad_input(fmt::format("{}: the pattern", source_), fmt::format("at byte {}, it {}", at_, cause), mend);
  }
  [[noreturn]] void refuse_construct(std::string_view what) const {
    refuse(fmt::format("uses {}, which is not known to mean the same here as in Hugging Face's tokenizers", what),
           "write it with character classes, groups, quantifiers and look-ahead");
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  void emit(std::string_view pcre) { result_.pcre += pcre; }

  int add_atom(std::string pcre, bool look = false) {
    if (!look) emit(pcre);
    result_.atoms.push_back({std::move(pcre), caseless_, look, {}});
    return static_cast<int>(result_.atoms.size()) - 1;
  }

  void connect(const std::vector<int>& from, const std::vector<int>& to) {
    for (const int atom : from) {
      auto& follow = result_.atoms[static_cast<size_t>(atom)].follow;
      for (const int next : to) {
        if (std::find(follow.begin(), follow.end(), next) == follow.end()) follow.push_back(next);
      }
    }
  }

  Fragment alternatives(int depth) {
    if (depth > kDepthLimit) refuse("is nested too deeply", "simplify it");
    Fragment all;
    int count = 0;
    do {
      if (count++ > 0) emit("|");
      const Fragment one = sequence(depth);
      all.first.insert(all.first.end(), one.first.begin(), one.first.end());
      all.last.insert(all.last.end(), one.last.begin(), one.last.end());
      all.nullable |= one.nullable;
      all.only_atom = count == 1 ? one.only_atom : -1;
      if (depth == 0 && one.only_atom >= 0 && !one.nullable) result_.whole_alternatives.push_back(one.only_atom);
    } while (take("|"));
    return all;
  }

  Fragment sequence(int depth) {
    Fragment all;
    all.nullable = true;
    int parts = 0;
    uint32_t letter = 0;
    while (!at_end() && peek() != '|' && peek() != ')') {
      const Fragment next = repeated(depth);
      if (caseless_ && letter != 0 && next.letter != 0) require_simple_folding(letter, next.letter);
      letter = next.letter;
      connect(all.last, next.first);
      if (all.nullable) all.first.insert(all.first.end(), next.first.begin(), next.first.end());
      if (!next.nullable) all.last.clear();
      all.last.insert(all.last.end(), next.last.begin(), next.last.end());
      all.nullable &= next.nullable;
      all.only_atom = parts++ == 0 ? next.only_atom : -1;
    }
    if (parts == 0) refuse("has an empty alternative", "remove it");
    return all;
  }

  /// Pairs that single characters fold to (U+00DF, U+FB00 to U+FB06): Oniguruma matches those, PCRE2 does not.
  void require_simple_folding(uint32_t a, uint32_t b) const {
    const std::array<char, 2> pair = {static_cast<char>(a | 0x20), static_cast<char>(b | 0x20)};
    for (const std::string_view folded : {"ss", "st", "ff", "fi", "fl"}) {
      if (std::string_view(pair.data(), 2) == folded) refuse_construct("a ligature's letters under (?i:...)");
    }
  }

  Fragment repeated(int depth) {
    Fragment one = single(depth);
    const bool look = one.only_atom == kLook;
    const size_t before = at_;
    if (!quantifier(one)) return one;
    if (look) {
      at_ = before;
      refuse_construct("a repeated look-around");
    }
    one.letter = 0;
    const char next = peek();
    if (next == '*' || next == '+' || next == '?' || next == '{') refuse_construct("a repeated quantifier");
    return one;
  }

  /// Reads a quantifier, if there is one.
  bool quantifier(Fragment& one) {
    int least = 0, most = kRepeatLimit;
    if (take("*")) {
      emit("*");
    } else if (take("+")) {
      emit("+");
      least = 1;
    } else if (take("?")) {
      emit("?");
      most = 1;
    } else if (peek() == '{') {
      interval(least, most);
      if (peek() == '?' || peek() == '+') refuse_construct("an interval with a suffix");
      return repeat(one, least, most);
    } else {
      return false;
    }
    if (take("?")) {
      emit("?");
    } else if (take("+")) {
      emit("+");
    }
    return repeat(one, least, most);
  }

  bool repeat(Fragment& one, int least, int most) {
    if (most > 1) connect(one.last, one.first);
    one.nullable |= least == 0;
    if (least > 1) one.only_atom = -1;  // one character alone is not enough
    return true;
  }

  void interval(int& least, int& most) {
    take("{");
    const bool has_least = number(least);
    if (take(",")) {
      if (!number(most) && !has_least) refuse_construct("an interval without numbers");
    } else {
      if (!has_least) refuse("has a '{' that begins no interval", "escape it");
      most = least;
    }
    if (!take("}")) refuse("has a '{' that begins no interval", "escape it");
    if (most < 1 || most < least) refuse("repeats less than once or backwards", "correct the interval");
    emit(most == kRepeatLimit ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most));
  }

  bool number(int& value) {
    if (std::isdigit(static_cast<unsigned char>(peek())) == 0) return false;
    value = 0;
    while (std::isdigit(static_cast<unsigned char>(peek())) != 0) {
      value = 10 * value + (text_[at_++] - '0');
      if (value >= kRepeatLimit) refuse("repeats 1000 times or more", "use fewer");
    }
    return true;
  }

  Fragment single(int depth) {
    if (peek() == '(') return group(depth);
    uint32_t letter = 0;
    std::string pcre;
    if (peek() == '[') {
      pcre = bracket();
    } else if (peek() == '\\') {
      pcre = escape(letter);
      if (letter == 0) pcre = "[" + pcre + "]";
    } else if (take(".")) {
      pcre = R"([^\x{a}])";
    } else {
      if (std::string_view("*+?{}]^$").find(peek()) != std::string_view::npos) {
        refuse_construct(fmt::format("an unescaped '{}' here", peek()));
      }
      letter = literal();
      pcre = character(letter);
    }
    if (caseless_ && letter >= 0x80) refuse_construct("a letter beyond ASCII under (?i:...)");
    const int atom = add_atom(std::move(pcre));
    return {{atom}, {atom}, false, atom, letter};
  }

  uint32_t literal() {
    const CodePoint next = code_point_at(text_, at_);
    at_ += next.bytes;
    return next.value;
  }

  Fragment group(int depth) {
    const bool outer = caseless_;
    if (take("(?!")) return look_around("(?!", depth, true);
    if (take("(?=")) return look_around("(?=", depth, true);
    if (take("(?<!")) return look_around("(?<!", depth, false);
    if (take("(?<=")) return look_around("(?<=", depth, false);
    if (take("(?i:")) {
      caseless_ = true;
      emit("(?i:");
    } else if (take("(?>")) {
      emit("(?>");
    } else if (take("(?:")) {
      emit("(?:");
    } else {
      take("(");
      if (peek() == '?' || peek() == '*') refuse_construct("a group of this kind");
      emit("(?:");
    }
    Fragment inside = alternatives(depth + 1);
    close();
    caseless_ = outer;
    inside.letter = 0;
    return inside;
  }

  void close() {
    if (!take(")")) refuse("has a '(' without its ')'", "escape it or close it");
    emit(")");
  }

  /// Its inside takes no part in the construction: only whether it looks at one character matters.
  Fragment look_around(std::string_view begin, int depth, bool ahead) {
    emit(begin);
    const size_t atoms = result_.atoms.size();
    const Fragment inside = alternatives(depth + 1);
    close();
    const bool one_character = inside.only_atom >= 0 && !inside.nullable && result_.atoms.size() == atoms + 1 &&
                               result_.atoms[atoms].follow.empty();
    if (!ahead || !one_character) result_.looks_far = true;
    const int atom = add_atom("", true);
    return {{atom}, {atom}, true, kLook, 0};
  }

  /// What follows a backslash, as it is written inside a class. `letter` is set if that is one character.
  std::string escape(uint32_t& letter) {
    take("\\");
    const auto literal_of = [&](uint32_t code_point) {
      letter = code_point;
      return character(code_point);
    };
    if (take("s")) return class_of(kSpace);
    if (take("S")) return class_of(kNotSpace);
    if (take("d")) return class_of(R"(\p{Nd})");
    if (take("D")) return class_of(R"(\P{Nd})");
    if (take("n")) return literal_of('\n');
    if (take("r")) return literal_of('\r');
    if (take("t")) return literal_of('\t');
    if (take("f")) return literal_of('\f');
    if (take("v")) return literal_of('\v');
    if (take("p{")) return class_of(property("\\p{"));
    if (take("P{")) return class_of(property("\\P{"));
    if (take("x{")) return literal_of(hexadecimal(8, '}'));
    if (take("u")) return literal_of(hexadecimal(4, '\0'));
    if (static_cast<unsigned char>(peek()) < 0x80 && std::ispunct(static_cast<unsigned char>(peek())) != 0) {
      return literal_of(static_cast<unsigned char>(text_[at_++]));
    }
    if (peek() == ' ') return literal_of(static_cast<unsigned char>(text_[at_++]));
    refuse_construct(fmt::format("the escape '\\{}'",
                                 std::string(1, std::isprint(static_cast<unsigned char>(peek())) != 0 ? peek() : '?')));
  }

  std::string class_of(std::string pcre) const {
    if (caseless_) refuse_construct("a class of many characters under (?i:...)");
    return pcre;
  }

  std::string property(const std::string& begin) {
    const size_t end = text_.find('}', at_);
    const std::string_view name = text_.substr(at_, end == std::string_view::npos ? end : end - at_);
    const bool category = is_one_of(name, kCategories);
    if (end == std::string_view::npos || (!category && !is_one_of(name, kScripts))) {
      refuse_construct("a character property other than general categories and common scripts");
    }
    at_ = end + 1;
    return fmt::format("{}{}{}}}", begin, category ? "" : "sc:", name);
  }

  /// Up to `digits` digits ended by `end`, or exactly that many if there is no end.
  uint32_t hexadecimal(int digits, char end) {
    uint32_t value = 0;
    int count = 0;
    for (; count < digits && std::isxdigit(static_cast<unsigned char>(peek())) != 0; ++count, ++at_) {
      value = value << 4 | static_cast<uint32_t>(std::stoi(std::string(1, peek()), nullptr, 16));
    }
    const bool complete = end == '\0' ? count == digits : count > 0 && peek() == end;
    if (!complete || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000) || value == 0) {
      refuse("has a code point that is none", "write \\uHHHH or \\x{H...}");
    }
    if (end != '\0') ++at_;
    return value;
  }

  std::string bracket() {
    take("[");
    std::string pcre = take("^") ? "[^" : "[";
    if (caseless_ && pcre == "[^") refuse_construct("a negated class under (?i:...)");
    if (peek() == ']') refuse_construct("a class that begins with ']'");
    while (peek() != ']') {
      if (at_end()) refuse("has a '[' without its ']'", "escape it or close it");
      uint32_t first = 0;
      pcre += class_item(first);
      if (peek() != '-' || peek(1) == ']') continue;
      take("-");
      uint32_t last = 0;
      const std::string end = class_item(last);
      if (first == 0 || last < first) refuse("has a range that is none", "escape the '-'");
      if (caseless_) refuse_construct("a range under (?i:...)");
      pcre += "-" + end;
      if (peek() == '-' && peek(1) != ']') refuse_construct("a '-' after a range");
    }
    take("]");
    return pcre + "]";
  }

  std::string class_item(uint32_t& letter) {
    if (at_end()) refuse("has a '[' without its ']'", "escape it or close it");
    if (peek() == '\\') return escape(letter);
    if (peek() == '[') refuse_construct("a class inside a class");
    if (peek() == '&' && peek(1) == '&') refuse_construct("an intersection of classes");
    letter = literal();
    if (caseless_ && letter >= 0x80) refuse_construct("a letter beyond ASCII under (?i:...)");
    return character(letter);
  }

  static constexpr int kLook = -2;
  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  bool caseless_ = false;
  PatternSyntax result_;
};

}  // namespace

PatternSyntax parse_pattern(std::string_view pattern, const std::string& source) {
  return PatternParser(pattern, source).parse();
}

std::string pcre_literal(std::string_view text) {
  std::string pcre;
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = code_point_at(text, at);
    ensure(next.bytes > 0, "a literal is valid UTF-8");
    pcre += character(next.value);
    at += next.bytes;
  }
  return pcre;
}

}  // namespace foresail
