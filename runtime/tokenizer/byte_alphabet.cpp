#include "runtime/tokenizer/byte_alphabet.h"

#include <array>

#include "runtime/tokenizer/unicode.h"

namespace foresail {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr int kAlphabetEnd = 0x100 + 68;  // 68 bytes do not stand for themselves

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, kAlphabetEnd> bytes{};  ///< by code point; -1: not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int code_point = stands_for_itself(byte) ? byte : next++;
      append_utf8(static_cast<uint32_t>(code_point), characters[static_cast<size_t>(byte)]);
      bytes[static_cast<size_t>(code_point)] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet value;
  return value;
}

}  // namespace

std::string_view byte_character(unsigned char byte) { return alphabet().characters[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint next = code_point_at(token, at);
    if (next.bytes == 0 || next.value >= kAlphabetEnd) return std::nullopt;
    const int byte = alphabet().bytes[next.value];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += next.bytes;
  }
  return bytes;
}

}  // namespace foresail
