#include "runtime/data/token_type.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace foresail {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are little-endian and read as they lie in memory");

constexpr uint8_t kNoCode = 0;

struct TypeRow {
  TokenType type;
  int64_t bytes;
  std::string_view name;
  uint8_t index_code;
};

constexpr std::array kTypes = {
    TypeRow{TokenType::u8, 1, "u8", 1},         TypeRow{TokenType::i8, 1, "i8", 2},
    TypeRow{TokenType::i16, 2, "i16", 3},       TypeRow{TokenType::i32, 4, "i32", 4},
    TypeRow{TokenType::i64, 8, "i64", 5},       TypeRow{TokenType::u16, 2, "u16", 8},
    TypeRow{TokenType::u32, 4, "u32", kNoCode},
};

const TypeRow& row_of(TokenType type) {
  const auto* const found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.type == type; });
  ensure(found != kTypes.end(), "every TokenType is in the table");
  return *found;
}

template <typename T>
int64_t widen(const std::byte* from, std::span<int32_t> out) {
  int64_t bad = -1;
  for (int64_t i = 0; i < std::ssize(out); ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof value);
    if constexpr (std::numeric_limits<T>::is_signed) {
      if (value < 0 && bad < 0) bad = i;
    }
    if constexpr (std::numeric_limits<T>::digits > std::numeric_limits<int32_t>::digits) {
      if (value > std::numeric_limits<int32_t>::max() && bad < 0) bad = i;
    }
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): the token type i8 holds numbers, not characters
    out[static_cast<size_t>(i)] = static_cast<int32_t>(value);
  }
  return bad;
}

}  // namespace

int64_t size_of(TokenType type) { return row_of(type).bytes; }
std::string_view name_of(TokenType type) { return row_of(type).name; }

TokenType token_type_for(int64_t vocabulary) {
  constexpr int64_t kFirstVocabularyTooLargeForU16 = 65500;
  return vocabulary < kFirstVocabularyTooLargeForU16 ? TokenType::u16 : TokenType::i32;
}

std::optional<uint8_t> index_code_of(TokenType type) {
  const uint8_t code = row_of(type).index_code;
  return code == kNoCode ? std::nullopt : std::optional(code);
}

std::optional<TokenType> token_type_of_index_code(uint8_t code) {
  if (code == kNoCode) return std::nullopt;
  const auto* const found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.index_code == code; });
  return found == kTypes.end() ? std::nullopt : std::optional(found->type);
}

int64_t widen_tokens(TokenType type, const std::byte* from, std::span<int32_t> out) {
  switch (type) {
    case TokenType::u8: return widen<uint8_t>(from, out);
    case TokenType::i8: return widen<int8_t>(from, out);
    case TokenType::i16: return widen<int16_t>(from, out);
    case TokenType::i32: return widen<int32_t>(from, out);
    case TokenType::i64: return widen<int64_t>(from, out);
    case TokenType::u16: return widen<uint16_t>(from, out);
    case TokenType::u32: return widen<uint32_t>(from, out);
  }
  return 0;
}

}  // namespace foresail
