// UTF-8, and the quick check of Normalization Form C against utf8proc's data.
#include "runtime/tokenizer/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <array>
#include <set>

#include "runtime/tokenizer/byte_alphabet.h"

namespace foresail {
namespace {

std::string utf8(uint32_t c) {
  std::string text;
  append_utf8(c, text);
  return text;
}

bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }

TEST(Unicode, EveryCodePointReturnsFromUtf8) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_surrogate(c)) continue;
    const std::string text = utf8(c);
    ASSERT_EQ(code_point_at(text, 0).value, c);
    ASSERT_EQ(code_point_at(text, 0).bytes, text.size());
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_TRUE(is_incomplete_character(text.substr(0, cut))) << c;
      ASSERT_EQ(valid_utf8_prefix(text.substr(0, cut)), 0u);
    }
    ASSERT_FALSE(is_incomplete_character(text));
  }
}

TEST(Unicode, LongFormsSurrogatesAndStrayBytesAreNoUtf8) {
  for (const char* bad :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\x80", "\xFF", "\xC3(", "\xE2\x82(", "\xF0\x9F\x98("}) {
    EXPECT_EQ(valid_utf8_prefix(bad), 0u);
    EXPECT_EQ(valid_utf8_prefix(std::string("ab\u00e9") + bad), 4u);
    EXPECT_FALSE(is_incomplete_character(bad));
  }
}

TEST(Unicode, WhiteSpaceAtBothEnds) {
  const std::string text = "\u3000\t x\u00a0y \u2028\n";
  EXPECT_EQ(leading_white_space(text), 5u);
  EXPECT_EQ(trailing_white_space(text), 5u);
  EXPECT_EQ(trailing_white_space("  "), 2u);
  EXPECT_EQ(trailing_white_space("\x80 "), 1u);
}

// Second and later parts of canonical decompositions: what may join with the character before it.
std::set<uint32_t> joining() {
  std::set<uint32_t> parts;
  for (utf8proc_int32_t c = 0; c <= 0x10FFFF; ++c) {
    std::array<utf8proc_int32_t, 32> buffer{};
    int boundary = 0;
    const auto count = utf8proc_decompose_char(c, buffer.data(), buffer.size(), UTF8PROC_DECOMPOSE, &boundary);
    for (utf8proc_ssize_t i = 1; i < count; ++i) parts.insert(static_cast<uint32_t>(buffer[static_cast<size_t>(i)]));
  }
  return parts;
}

TEST(Unicode, WhatTheQuickCheckPassesIsStableInNfc) {
  const std::set<uint32_t> parts = joining();
  int64_t passed = 0;
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_surrogate(c) || may_change_in_nfc(utf8(c))) continue;
    ++passed;
    ASSERT_EQ(to_nfc(utf8(c)), utf8(c)) << c;
    ASSERT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class, 0) << c;
    ASSERT_EQ(parts.count(c), 0u) << c;
  }
  EXPECT_GT(passed, 30'000);
}

TEST(Unicode, ComposesAndOrdersMarks) {
  EXPECT_EQ(to_nfc("e\u0301 A\u030a \u212b"), "\u00e9 \u00c5 \u00c5");
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(to_nfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");  // never composed again
  EXPECT_EQ(to_nfc(std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_TRUE(may_change_in_nfc("caf\u0065\u0301"));
  EXPECT_FALSE(may_change_in_nfc("caf\u00e9 \u4e2d\u6587"));
}

TEST(Unicode, TheByteAlphabetIsGpt2s) {
  EXPECT_EQ(byte_character(' '), "\u0120");
  EXPECT_EQ(byte_character('\n'), "\u010a");
  EXPECT_EQ(byte_character('A'), "A");
  EXPECT_EQ(byte_character(0xAD), "\u0143");
  std::set<std::string> characters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character(byte_character(static_cast<unsigned char>(byte)));
    EXPECT_EQ(bytes_of_token(character), std::string(1, static_cast<char>(byte)));
    characters.insert(character);
  }
  EXPECT_EQ(characters.size(), 256u);
  EXPECT_FALSE(bytes_of_token("a b").has_value());
  EXPECT_FALSE(bytes_of_token("\uff5c").has_value());
}

}  // namespace
}  // namespace foresail
