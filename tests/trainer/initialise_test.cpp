#include "runtime/trainer/initialise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "runtime/executor/arena.h"
#include "tests/trainer/small_run.h"

namespace foresail {
namespace {

/// Initialised parameters of one rank.
struct Initialised {
  Program program;
  RankSlices slices;
  std::unique_ptr<Arena> arena;

  Initialised(const SessionRequest& request, const MeshCoordinate& place) {
    program = compile(request.model, request.job, request.strategy, request.target, place.pp).train;
    slices = rank_slices(request.model, request.strategy, place);
    arena = std::make_unique<Arena>(program.arena.bytes);
    std::memset(arena->data(), 0x5A, static_cast<size_t>(arena->bytes()));  // nothing may survive
    initialise(program, slices, 7, arena->data());
  }
  std::span<const double> parameters() const {
    const Segment& segment = program.arena.parameters;
    return {reinterpret_cast<const double*>(arena->data() + segment.offset), static_cast<size_t>(segment.bytes) / 8};
  }
};

/// Checks every element against its place; how many there were.
int64_t check_elements(const Initialised& run) {
  int64_t checked = 0;
  std::vector<bool> held(run.parameters().size());
  for (const ParameterSlice& slice : run.slices.parameters) {
    const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
    for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
      for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
        const auto at = static_cast<size_t>(slice.element_offset + (row - slice.row_begin) * slice.row_stride + column -
                                            slice.column_begin);
        const double expected = initial_value(slice.init, 7, stream_of(slice.tensor), row, columns, column);
        EXPECT_EQ(run.parameters()[at], expected) << slice.tensor << " " << row << " " << column;
        held[at] = true;
        ++checked;
      }
    }
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (!held[i]) {
      EXPECT_EQ(run.parameters()[i], 0) << "padding at " << i;
    }
  }
  return checked;
}

TEST(Initialise, EveryElementIsAFunctionOfItsPlaceInTheLogicalTensorAndPaddingIsZero) {
  SessionRequest request = testing::small_request();
  request.job.global_batch = 12;
  request.model.ffn = 25;  // tp = 2 pads it
  for (const char* text : {"micro_batch=2", "tp=2,micro_batch=2", "dp=3,micro_batch=2,zero_stage=1",
                           "dp=3,tp=2,zero_stage=3", "pp=2,cp=2,micro_batch=2,zero_stage=3", "tp=4,micro_batch=2"}) {
    request.strategy = parse_strategy(text).strategy;
    const Mesh mesh = mesh_of(request.model, request.strategy);
    int64_t checked = 0;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      checked += check_elements(Initialised(request, mesh.coordinate_of(rank)));
    }
    EXPECT_GE(checked, parameter_count(request.model)) << text;
    if (request.strategy.zero_stage == 3 && request.strategy.tp == 1) {
      EXPECT_EQ(checked, parameter_count(request.model)) << text;
    }
  }
}

TEST(Initialise, TheMasterCopyIsFilledFromItsOwnSlices) {
  Program program;
  program.precision = kFloat32Precision;
  program.arena.parameters = {0, 6 * 4};
  program.arena.master = {6 * 4, 4 * 4};
  program.arena.bytes = 10 * 4;
  ParameterSlice whole;
  whole.tensor = "w", whole.shape = {2, 3}, whole.row_end = 2, whole.column_end = 3, whole.row_stride = 3;
  whole.init = {InitKind::normal, 1};
  ParameterSlice shard = whole;
  shard.row_begin = 1, shard.column_begin = 1, shard.element_offset = 2;
  std::vector<float> arena(10, 5.0F);
  initialise(program, {{whole}, {}, {shard}}, 3, reinterpret_cast<std::byte*>(arena.data()));
  EXPECT_NE(arena[4], 0);
  EXPECT_EQ(arena[6], 0);
  EXPECT_EQ(arena[7], 0);
  EXPECT_EQ(arena[8], arena[4]);
  EXPECT_EQ(arena[9], arena[5]);
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
  const Initialised run(testing::small_request(), {});
  const ArenaMap& map = run.program.arena;
  for (const Segment& segment : {map.gradients, map.moment1, map.moment2}) {
    ASSERT_GT(segment.bytes, 0);
    for (int64_t i = 0; i < segment.bytes; ++i) ASSERT_EQ(run.arena->data()[segment.offset + i], std::byte{0});
  }
}

}  // namespace
}  // namespace foresail
