// The integer types in which datasets store token ids, and their widening to the i32 that everything else works with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace foresail {

enum class TokenType : uint8_t { u8, i8, i16, i32, i64, u16, u32 };

/// Bytes of one token.
int64_t size_of(TokenType type);
std::string_view name_of(TokenType type);
/// What Megatron's writer takes: u16 below 65500 ids, i32 otherwise.
TokenType token_type_for(int64_t vocabulary);

/// The code of a type in a Megatron index; nothing if the format has none (u32).
std::optional<uint8_t> index_code_of(TokenType type);
/// The reverse. Floating-point files exist (codes 6 and 7); they hold no tokens and have no type here.
std::optional<TokenType> token_type_of_index_code(uint8_t code);

/// Widens little-endian tokens at `from`, which need not be aligned. Returns the position of the first one that is no id
/// (negative or above 2^31 - 1), or -1.
int64_t widen_tokens(TokenType type, const std::byte* from, std::span<int32_t> out);

}  // namespace foresail
