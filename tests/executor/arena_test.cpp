#include "runtime/executor/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "runtime/executor/resident.h"

namespace foresail {
namespace {

TEST(Arena, IsZeroedAndPageAligned) {
  const Arena arena(1'000'001);
  EXPECT_EQ(arena.bytes(), 1'000'001);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(arena.data(), arena.data() + arena.bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Arena, EveryPageIsResidentBeforeTheFirstStep) {
  const Arena arena(int64_t{9} << 20);
  std::vector<unsigned char> resident(static_cast<size_t>((arena.bytes() + 4095) / 4096));
  ASSERT_EQ(mincore(arena.data(), static_cast<size_t>(arena.bytes()), resident.data()), 0);
  EXPECT_TRUE(std::all_of(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(Arena, TheResidentSetGrowsByItsBytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow memory counts as resident";
#endif
  const int64_t before = resident_bytes();
  const Arena arena(int64_t{64} << 20);
  const int64_t grown = resident_bytes() - before;
  EXPECT_NEAR(static_cast<double>(grown), static_cast<double>(arena.bytes()), 4 << 20);
}

TEST(Arena, MoreThanTheMachineHasIsRefusedWithBothNumbers) {
  try {
    const Arena arena(int64_t{1} << 50);
    FAIL() << "an arena of a petabyte was granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
    EXPECT_NE(std::string(error.what()).find("1125899906842624"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("available"), std::string::npos);
  }
}

}  // namespace
}  // namespace foresail
