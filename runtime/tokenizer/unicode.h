// What the tokenizer needs of UTF-8 and Unicode: code points, valid stretches, white space, NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foresail {

struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 0;  ///< 0: no valid character begins here
};

/// The character that begins at byte `at` (shortest form, no surrogates, at most U+10FFFF).
CodePoint code_point_at(std::string_view text, size_t at);
void append_utf8(uint32_t code_point, std::string& text);

/// Bytes of the longest prefix that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);
/// True if the bytes begin a character whose end is missing (1 to 3 bytes that more bytes can complete).
bool is_incomplete_character(std::string_view bytes);

/// White_Space of Unicode, which is what \s means in tokenizer.json (stable since Unicode 6.3).
bool is_white_space(uint32_t code_point);
/// Bytes of the white space that `text` begins or ends with.
size_t leading_white_space(std::string_view text);
size_t trailing_white_space(std::string_view text);

/// False only if the text is certainly in Normalization Form C (a quick check that knows the common scripts).
bool may_change_in_nfc(std::string_view text);
/// Normalization Form C of valid UTF-8.
std::string to_nfc(std::string_view text);

}  // namespace foresail
