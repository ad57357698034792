// GPT-2's byte-level alphabet: every byte has one printable character, so that vocabularies can be written as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace foresail {

/// The character (UTF-8) that stands for a byte: itself if it is printable Latin-1, otherwise the next of U+0100 on.
std::string_view byte_character(unsigned char byte);

/// The bytes that a token written in the alphabet stands for; nothing if one of its characters is outside.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace foresail
