// Counter-based random numbers, the static thread partition, element types, errors, logging, the version.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/log.h"
#include "core/parallel.h"
#include "core/philox.h"
#include "core/version.h"

namespace foresail {
namespace {

TEST(Philox, ReproducesTheKnownAnswersOfItsAuthors) {
  // Random123's kat_vectors for philox4x32-10.
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformsAreInsideTheOpenInterval) {
  EXPECT_GT(uniform_from_bits(0), 0.0);
  EXPECT_LT(uniform_from_bits(~0u), 1.0);
}

TEST(Philox, NormalsHaveMeanZeroAndVarianceOne) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    const double draw = random_normal(1234, 5, i);
    sum += draw;
    squares += draw * draw;
  }
  EXPECT_NEAR(sum / kDraws, 0, 4 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 4 * std::sqrt(2.0 / kDraws));
}

TEST(Parallel, CoversEveryIndexOnceWithRangesOfTheGrain) {
  for (const int threads : {1, 2, 3, 7}) {
    set_thread_count(threads);
    for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
      std::vector<std::atomic<int>> seen(count);
      parallel_ranges(count, 16, [&](int64_t begin, int64_t end, int thread) {
        EXPECT_LT(thread, threads);
        EXPECT_EQ(begin % 16, 0);
        EXPECT_TRUE(end % 16 == 0 || end == count);
        for (int64_t i = begin; i < end; ++i) ++seen[i];
      });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
  }
  set_thread_count(1);
}

TEST(DType, NamesReadBack) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32}) {
    EXPECT_EQ(dtype_from_name(name_of(type)), type);
    EXPECT_GT(size_of(type), 0);
  }
  EXPECT_EQ(dtype_from_name("f8"), std::nullopt);
}

TEST(Error, IsOneLineOfThingCauseAndMend) {
  try {
    throw_bad_input("job.json", "has no model", "add one");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "job.json: has no model; add one");
    EXPECT_EQ(static_cast<int>(error.exit()), 2);
  }
}

TEST(Error, StaysOneLineWhateverItQuotes) {
  try {
    throw_environment("a\nb", "c\x1b[31m\r", "d\te");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a b: c [31m ; d e");
    EXPECT_EQ(static_cast<int>(error.exit()), 3);
  }
}

TEST(Log, WritesToStandardErrorFromTheLeastLevelOn) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  configure_log(LogLevel::warning, "rank 3 of 100%");
  log_info("hidden {}", 1);
  log_warning("shown {} and {{{}}}", 2, "%v");
  configure_log(LogLevel::info, "");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_NE(text.find("rank 3 of 100% warning: shown 2 and {%v}"), std::string::npos) << text;
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(Version, NamesReleaseGitCompilerAndBuildType) {
  const BuildInfo info = build_info();
  for (const std::string& part : {info.version, info.git, info.compiler, info.build_type}) {
    EXPECT_FALSE(part.empty());
    EXPECT_NE(version_text().find(part), std::string::npos);
  }
}

}  // namespace
}  // namespace foresail
