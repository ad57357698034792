#include "runtime/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/error.h"

namespace foresail {
namespace {

struct Range {
  uint32_t first, last;
};

constexpr Range kWhiteSpace[] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                 {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                 {0x205F, 0x205F}, {0x3000, 0x3000}};

// Starters that are their own composition and never the second part of one. Not all of them: those of the scripts that
// fill most texts. tests/tokenizer/unicode_test.cpp checks every one against the Unicode data.
constexpr Range kStableInNfc[] = {{0x0, 0x2FF},     {0x400, 0x482},   {0x48A, 0x52F},   {0x5D0, 0x5EA},
                                  {0x620, 0x64A},   {0x2010, 0x2027}, {0x2030, 0x205E}, {0x20A0, 0x20C0},
                                  {0x3001, 0x3029}, {0x3041, 0x3096}, {0x30A1, 0x30FA}, {0x30FC, 0x30FC},
                                  {0x4E00, 0x9FFF}, {0xAC00, 0xD7A3}, {0xFF01, 0xFFEE}, {0x1F300, 0x1FAFF}};

constexpr unsigned char kLeadOfU0300 = 0xCC;  // below it every character is below U+0300

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

/// Bytes that a lead byte announces; 0 for bytes that begin no character.
size_t announced_bytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/// The second byte excludes long forms, surrogates and what lies beyond U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  if (lead == 0xE0) return second >= 0xA0 && second <= 0xBF;
  if (lead == 0xED) return second >= 0x80 && second <= 0x9F;
  if (lead == 0xF0) return second >= 0x90 && second <= 0xBF;
  if (lead == 0xF4) return second >= 0x80 && second <= 0x8F;
  return is_continuation(second);
}

template <size_t N>
bool is_in(uint32_t code_point, const Range (&ranges)[N]) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& range) { return code_point >= range.first && code_point <= range.last; });
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  if (at >= text.size()) return {};
  const size_t bytes = announced_bytes(byte(0));
  if (bytes == 1) return {byte(0), 1};
  if (bytes == 0 || at + bytes > text.size() || !second_byte_fits(byte(0), byte(1))) return {};
  uint32_t value = byte(0) & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (!is_continuation(byte(i))) return {};
    value = value << 6 | (byte(i) & 0x3FU);
  }
  return {value, bytes};
}

void append_utf8(uint32_t code_point, std::string& text) {
  const auto put = [&](uint32_t bits) { text += static_cast<char>(bits); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t bytes = code_point_at(text, at).bytes;
    if (bytes == 0) return at;
    at += bytes;
  }
  return at;
}

bool is_incomplete_character(std::string_view bytes) {
  if (bytes.empty()) return false;
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() >= announced_bytes(lead)) return false;
  if (bytes.size() > 1 && !second_byte_fits(lead, static_cast<unsigned char>(bytes[1]))) return false;
  return bytes.size() < 3 || is_continuation(static_cast<unsigned char>(bytes[2]));
}

bool is_white_space(uint32_t code_point) { return is_in(code_point, kWhiteSpace); }

size_t leading_white_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint next = code_point_at(text, at);
    if (next.bytes == 0 || !is_white_space(next.value)) break;
    at += next.bytes;
  }
  return at;
}

size_t trailing_white_space(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t lead = begin - 1;
    while (lead > 0 && is_continuation(static_cast<unsigned char>(text[lead]))) --lead;
    const CodePoint last = code_point_at(text, lead);
    if (last.bytes != begin - lead || !is_white_space(last.value)) break;
    begin = lead;
  }
  return text.size() - begin;
}

bool may_change_in_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < kLeadOfU0300) {
      ++at;
      continue;
    }
    const CodePoint next = code_point_at(text, at);
    if (next.bytes == 0 || !is_in(next.value, kStableInNfc)) return true;
    at += next.bytes;
  }
  return false;
}

std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* raw = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              static_cast<utf8proc_ssize_t>(text.size()), &raw, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> result(raw, &std::free);
  if (bytes == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  ensure(bytes >= 0, "text to be normalised is valid UTF-8");
  return {reinterpret_cast<const char*>(result.get()), static_cast<size_t>(bytes)};
}

}  // namespace foresail
