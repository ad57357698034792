#include "runtime/trainer/initialise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "runtime/executor/arena.h"
#include "tests/trainer/small_run.h"

namespace foresail {
namespace {

/// Initialised parameters of one tensor-parallel rank.
struct Initialised {
  Program program;
  std::vector<ParameterSlice> slices;
  std::unique_ptr<Arena> arena;

  Initialised(SessionRequest request, int64_t tensor, int rank) {
    request.strategy.tp = tensor;
    program = compile(request.model, request.job, request.strategy, request.target, 0).train;
    slices = parameter_slices(request.model, request.strategy, 0, rank);
    arena = std::make_unique<Arena>(program.arena.bytes);
    std::memset(arena->data(), 0x5A, static_cast<size_t>(arena->bytes()));  // nothing may survive
    initialise(program, slices, 7, arena->data());
  }
  double at(const ParameterSlice& slice, int64_t row, int64_t column) const {
    const auto* values =
        reinterpret_cast<const double*>(arena->data() + program.arena.parameters.offset) + slice.element_offset;
    return values[(row - slice.row_begin) * (slice.column_end - slice.column_begin) + column - slice.column_begin];
  }
};

TEST(Initialise, EveryElementIsAFunctionOfItsPlaceInTheLogicalTensor) {
  for (const auto& [tensor, rank] : {std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 1}}) {
    const Initialised run(testing::small_request(), tensor, rank);
    int64_t checked = 0;
    for (const ParameterSlice& slice : run.slices) {
      const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
      for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
        for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
          const double expected = initial_value(slice.init, 7, stream_of(slice.tensor), row, columns, column);
          ASSERT_EQ(run.at(slice, row, column), expected) << slice.tensor << " " << row << " " << column;
          ++checked;
        }
      }
    }
    EXPECT_GT(checked, 1000);
  }
}

TEST(Initialise, ValuesFollowTheGivenDeviation) {
  const Init init{InitKind::normal, 0.02};
  double sum = 0, squares = 0;
  constexpr int64_t kCount = 20000;
  for (int64_t i = 0; i < kCount; ++i) {
    const double value = initial_value(init, 3, stream_of("a"), i / 100, 100, i % 100);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.0006);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 0.0004);
}

TEST(Initialise, TensorsOfDifferentNamesAndSeedsDiffer) {
  const Init init{InitKind::normal, 1};
  EXPECT_NE(initial_value(init, 3, stream_of("a"), 0, 1, 0), initial_value(init, 3, stream_of("b"), 0, 1, 0));
  EXPECT_NE(initial_value(init, 3, stream_of("a"), 0, 1, 0), initial_value(init, 4, stream_of("a"), 0, 1, 0));
}

TEST(Initialise, MomentsAndGradientsAreZero) {
  const Initialised run(testing::small_request(), 1, 0);
  const ArenaMap& map = run.program.arena;
  for (const Segment& segment : {map.gradients, map.moment1, map.moment2}) {
    ASSERT_GT(segment.bytes, 0);
    for (int64_t i = 0; i < segment.bytes; ++i) ASSERT_EQ(run.arena->data()[segment.offset + i], std::byte{0});
  }
}

}  // namespace
}  // namespace foresail
