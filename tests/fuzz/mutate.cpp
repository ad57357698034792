#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <vector>

namespace foresail {
namespace {

constexpr std::array<std::string_view, 30> kValues = {"0",
                                                      "-1",
                                                      "1",
                                                      "2",
                                                      "3",
                                                      "-0",
                                                      "0.5",
                                                      "1e308",
                                                      "-1e308",
                                                      "1e-320",
                                                      "1e999",
                                                      "2147483647",
                                                      "2147483648",
                                                      "4294967296",
                                                      "9223372036854775807",
                                                      "9223372036854775808",
                                                      "18446744073709551615",
                                                      "-9223372036854775808",
                                                      "1e18",
                                                      "123456789012345678901234567890",
                                                      "null",
                                                      "true",
                                                      "\"\"",
                                                      "\"x\"",
                                                      "[]",
                                                      "{}",
                                                      "[[]]",
                                                      "[-1,1e308,null]",
                                                      "\"\\ud800\"",
                                                      "\"../../x\""};

constexpr std::array<uint64_t, 10> kWords = {
    0, 1, 7, 255, 65535, uint64_t{1} << 31, uint64_t{1} << 40, uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}};

// Begins of the scalars that follow a ':', ',' or '[' outside strings.
std::vector<size_t> value_places(const std::string& text) {
  std::vector<size_t> places;
  bool in_string = false, expect = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    const bool scalar = c == '"' || c == '-' || std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (expect && scalar) places.push_back(i), expect = false;
    if (c == '"') in_string = true;
    if (c == ':' || c == ',' || c == '[') expect = true;
  }
  return places;
}

size_t value_end(const std::string& text, size_t begin) {
  if (text[begin] != '"') return std::min(text.size(), text.find_first_of(",]} \n", begin));
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      return i + 1;
  }
  return text.size();
}

}  // namespace

uint64_t Mutator::next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

void Mutator::change_bytes(std::string& content) {
  if (content.empty()) content = "\0";
  const size_t at = below(content.size());
  const size_t length = 1 + below(std::min<size_t>(32, content.size() - at));
  switch (below(8)) {
    case 0: content[at] = static_cast<char>(content[at] ^ (1 << below(8))); break;
    case 1: content[at] = static_cast<char>(next()); break;
    case 2: content.erase(at, length); break;
    case 3: content.insert(at, content.substr(at, length)); break;
    case 4: content.resize(at); break;
    case 5: content.append(1 + below(64), static_cast<char>(next())); break;
    case 6: content.insert(at, length, static_cast<char>(next())); break;
    default: {  // a whole little-endian number
      const uint64_t word = kWords[below(kWords.size())];
      const size_t bytes = std::min<size_t>(below(2) == 0 ? 4 : 8, content.size() - at);
      std::memcpy(content.data() + at, &word, bytes);
    }
  }
}

void Mutator::replace_value(std::string& content) {
  const std::vector<size_t> places = value_places(content);
  if (places.empty()) return change_bytes(content);
  const size_t begin = places[below(places.size())];
  content.replace(begin, value_end(content, begin) - begin, kValues[below(kValues.size())]);
}

// Removes, doubles or renames a line of pretty-printed JSON, or a part of a compact one.
void Mutator::change_member(std::string& content) {
  const size_t comma = content.find(',', below(content.size()));
  if (comma == std::string::npos) return change_bytes(content);
  const size_t end = content.find(',', comma + 1);
  if (end == std::string::npos) return change_bytes(content);
  const std::string member = content.substr(comma, end - comma);
  switch (below(3)) {
    case 0: content.erase(comma, member.size()); break;
    case 1: content.insert(comma, member); break;
    default: {
      const size_t quote = content.find('"', comma);
      if (quote != std::string::npos) content.insert(quote + 1, "x");
    }
  }
}

void Mutator::change_json(std::string& content) {
  switch (below(8)) {
    case 0: return change_bytes(content);
    case 1:
    case 2: return change_member(content);
    default: return replace_value(content);
  }
}

std::string Mutator::mutate(std::string content, Content kind) {
  const size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes; ++i) kind == Content::json ? change_json(content) : change_bytes(content);
  return content;
}

}  // namespace foresail
