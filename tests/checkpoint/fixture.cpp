#include "tests/checkpoint/fixture.h"

#include "tests/checkpoint/thread_communicator.h"

namespace foresail {

std::vector<std::string> save_from(const std::filesystem::path& folder, int64_t step, int pp, int dp, int tp,
                                   DType dtype, int64_t keep) {
  return run_ranks(pp * dp * tp, [&](Communicator& communicator) {
    RankMemory memory = rank_memory(pp, dp, tp, communicator.rank(), dtype);
    memory.fill(kAdamW);
    const std::vector<SegmentView> segments = memory.segments(kAdamW);
    const RunState state = communicator.rank() == 0 ? state_at(step) : RunState{step, 0, 0, {}, {}, {}, {}, {}, {}, {}};
    save_checkpoint({folder, state, memory.slices, segments, keep, 64}, {&communicator, 0});
  });
}

}  // namespace foresail
