#include "core/digest.h"

#include <gtest/gtest.h>

#include <string>

namespace foresail {
namespace {

TEST(Digest, IsXxh3WithOneHundredTwentyEightBits) {
  // XXH3_128bits of the empty input with seed 0, as `xxhsum -H2` prints it.
  EXPECT_EQ(digest_of(std::string_view("")), "99aa06d3014798d86001c324468d497f");
}

TEST(Digest, OfAStreamEqualsTheDigestOfTheWholeForAnySplit) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31 + i / 7);
  const auto bytes = std::as_bytes(std::span(text));
  for (const size_t piece : {1u, 3u, 64u, 255u, 1024u, 5000u}) {
    Digest digest;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      digest.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(digest.hex(), digest_of(text)) << piece;
  }
}

TEST(Digest, ChangesWithEveryByte) {
  std::string text(100, 'a');
  const std::string before = digest_of(text);
  for (char& c : text) {
    c ^= 1;
    EXPECT_NE(digest_of(text), before);
    c ^= 1;
  }
  EXPECT_EQ(digest_of(text), before);
}

TEST(Digest, HexMayBeAskedInTheMiddleOfAStream) {
  Digest digest;
  digest.update(std::as_bytes(std::span(std::string_view("ab"))));
  EXPECT_EQ(digest.hex(), digest_of(std::string_view("ab")));
  digest.update(std::as_bytes(std::span(std::string_view("c"))));
  Digest moved = std::move(digest);
  EXPECT_EQ(moved.hex(), digest_of(std::string_view("abc")));
}

}  // namespace
}  // namespace foresail
