#include "program/schedule_orders.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.h"

namespace foresail {
namespace {

/// Appends entries and numbers the micro-batches of each (phase, chunk) in the order in which they are asked for. Entries
/// of micro-batches that the step does not have are left out: a schedule made for more micro-batches stays one.
class Writer {
 public:
  explicit Writer(int32_t micro_batches) : micro_batches_(micro_batches) {}

  void forward(int32_t chunk = 0) { next(Phase::forward, chunk); }
  void backward(int32_t chunk = 0) { next(Phase::backward, chunk); }
  void weight_gradient(int32_t chunk = 0) { next(Phase::weight_gradient, chunk); }

  void add(Phase phase, int32_t chunk, int32_t micro_batch) {
    if (micro_batch < micro_batches_) order_.push_back({phase, chunk, micro_batch});
  }
  /// How often (phase, chunk) was asked for.
  int32_t count(Phase phase, int32_t chunk) const { return next_[static_cast<size_t>(phase)][at(chunk)]; }
  StageOrder take() { return std::move(order_); }

 private:
  static size_t at(int32_t chunk) {
    ensure(chunk >= 0 && chunk < 2, "numbered chunks are those of a V");
    return static_cast<size_t>(chunk);
  }
  void next(Phase phase, int32_t chunk) { add(phase, chunk, next_[static_cast<size_t>(phase)][at(chunk)]++); }

  int32_t micro_batches_;
  std::array<std::array<int32_t, 2>, kPhaseCount> next_{};
  StageOrder order_;
};

/// Huang et al. 2019. Backward in the order of forward, so that gradients are added in the order of 1F1B.
StageOrder gpipe(const PipelineStage& p) {
  Writer write(p.micro_batches);
  for (int32_t m = 0; m < p.micro_batches; ++m) write.forward();
  for (int32_t m = 0; m < p.micro_batches; ++m) write.backward();
  return write.take();
}

/// Narayanan et al. 2019, Fan et al. 2021: as many forwards as stages follow, then one backward per forward.
StageOrder one_f_one_b(const PipelineStage& p) {
  const int32_t warm_up = std::min(p.micro_batches, p.stages - 1 - p.stage);
  Writer write(p.micro_batches);
  for (int32_t m = 0; m < warm_up; ++m) write.forward();
  for (int32_t m = 0; m < p.micro_batches - warm_up; ++m) {
    write.forward();
    write.backward();
  }
  for (int32_t m = 0; m < warm_up; ++m) write.backward();
  return write.take();
}

/// Narayanan et al. 2021, section 2.2: micro-batches pass a chunk in groups of `stages`. If the last group is not full, its
/// missing micro-batches are left out.
StageOrder interleaved(const PipelineStage& p) {
  Writer write(p.micro_batches);
  if (p.stages == 1) {  // every boundary is on this rank: a micro-batch passes all chunks at once
    for (int32_t m = 0; m < p.micro_batches; ++m) {
      for (int32_t chunk = 0; chunk < p.chunks; ++chunk) write.add(Phase::forward, chunk, m);
      for (int32_t chunk = p.chunks - 1; chunk >= 0; --chunk) write.add(Phase::backward, chunk, m);
    }
    return write.take();
  }
  const int32_t round = p.stages * p.chunks;
  const int32_t total = (p.micro_batches + p.stages - 1) / p.stages * round;
  const auto micro_batch = [&](int32_t i) { return i / round * p.stages + i % p.stages; };
  const auto forward = [&](int32_t i) { write.add(Phase::forward, i % round / p.stages, micro_batch(i)); };
  const auto backward = [&](int32_t i) {
    write.add(Phase::backward, p.chunks - 1 - i % round / p.stages, micro_batch(i));
  };
  const int32_t warm_up = std::min(total, 2 * (p.stages - 1 - p.stage) + (p.chunks - 1) * p.stages);
  for (int32_t i = 0; i < warm_up; ++i) forward(i);
  for (int32_t i = 0; i < total - warm_up; ++i) {
    forward(warm_up + i);
    backward(i);
  }
  for (int32_t i = total - warm_up; i < total; ++i) backward(i);
  return write.take();
}

/// Qi et al. 2023, section 3.1: 1F1B whose stage s lags s weight gradients behind, so that all stages keep the same number
/// of micro-batches and the weight gradients fill the bubble at the end.
StageOrder zb_h1(const PipelineStage& p) {
  const int32_t warm_up = std::min(p.micro_batches, p.stages - 1 - p.stage);
  Writer write(p.micro_batches);
  for (int32_t m = 0; m < warm_up; ++m) write.forward();
  for (int32_t m = 0; m < p.micro_batches; ++m) {
    if (warm_up + m < p.micro_batches) write.forward();
    write.backward();
    if (m >= p.stage) write.weight_gradient();
  }
  while (write.count(Phase::weight_gradient, 0) < p.micro_batches) write.weight_gradient();
  return write.take();
}

/// The weight gradients that are still owed, the deeper chunk's first.
void finish_weight_gradients(Writer& write, int32_t micro_batches) {
  for (const int32_t chunk : {1, 0}) {
    while (write.count(Phase::weight_gradient, chunk) < micro_batches) write.weight_gradient(chunk);
  }
}

/// The stage where the V turns: both chunks run a micro-batch one after the other.
StageOrder zb_v_turn(const PipelineStage& p, int32_t micro_batches) {
  Writer write(p.micro_batches);
  const auto forward = [&] {
    write.forward(0);
    write.forward(1);
  };
  const auto backward = [&] {
    write.backward(1);
    write.backward(0);
  };
  for (int32_t m = 0; m < p.stages; ++m) forward();
  for (int32_t m = p.stages; m < micro_batches; ++m) {
    backward();
    write.weight_gradient(1);
    write.weight_gradient(0);
    forward();
  }
  for (int32_t m = 0; m < p.stages; ++m) {
    backward();
    if (m == 1)
      write.weight_gradient(1);  // the third gradient of the cool-down arrives one unit after the second is done
  }
  finish_weight_gradients(write, micro_batches);
  return write.take();
}

/// Qi et al. 2023 ("ZB-V", in full in Qi et al. 2024, "Pipeline parallelism with controllable memory"): chunk 0 runs down
/// the stages and chunk 1 back up. Without bubble for F = B = W from 2 * stages micro-batches on; fewer are left out of
/// the order for that many.
StageOrder zb_v(const PipelineStage& p) {
  const int32_t micro_batches = std::max(p.micro_batches, 2 * p.stages);
  if (p.stage == p.stages - 1) return zb_v_turn(p, micro_batches);
  Writer write(p.micro_batches);
  // Until the first micro-batch is back there is nothing but chunk 0 to run ...
  for (int32_t i = 0; i < 2 * (p.stages - p.stage) - 1; ++i) write.forward(0);
  // ... and until its gradient arrives nothing but forward.
  for (int32_t i = 0; i < p.stage; ++i) {
    write.forward(1);
    write.forward(0);
  }
  const auto deeper_chunk = [&] {
    write.forward(1);
    write.backward(1);
    write.weight_gradient(1);
  };
  for (int32_t i = 0; i < p.stages - p.stage; ++i) deeper_chunk();
  while (write.count(Phase::forward, 1) < micro_batches) {
    if (write.count(Phase::forward, 0) < micro_batches) write.forward(0);
    write.backward(0);
    write.weight_gradient(0);
    deeper_chunk();
  }
  for (int32_t i = 0; i < p.stage; ++i) {
    write.backward(0);
    write.backward(1);
  }
  for (int32_t i = 0; i < p.stages - p.stage; ++i) {
    write.backward(0);
    write.weight_gradient(0);
  }
  finish_weight_gradients(write, micro_batches);
  return write.take();
}

/// Groups of `stages` micro-batches pass a chunk before the next chunk takes them: the first is back from the last stage
/// just when the group is through.
StageOrder forward_loops(const PipelineStage& p) {
  Writer write(p.micro_batches);
  for (int32_t first = 0; first < p.micro_batches; first += p.stages) {
    for (int32_t chunk = 0; chunk < p.chunks; ++chunk) {
      for (int32_t m = first; m < first + p.stages; ++m) write.add(Phase::forward, chunk, m);
    }
  }
  return write.take();
}

/// The turn takes a micro-batch every two units, so a stage runs as many ahead as it has stages below it.
StageOrder forward_vee(const PipelineStage& p) {
  Writer write(p.micro_batches);
  const int32_t ahead = std::min(p.micro_batches, p.stages - 1 - p.stage);
  for (int32_t m = 0; m < ahead; ++m) write.forward(0);
  for (int32_t m = 0; m < p.micro_batches; ++m) {
    if (ahead + m < p.micro_batches) write.forward(0);
    write.forward(1);
  }
  return write.take();
}

constexpr int32_t kAnyChunks = std::numeric_limits<int32_t>::max();

constexpr auto kRules = std::to_array<ScheduleRule>({
    // kind, splits backward, outgoing buffers, least and most chunks, placement, training, evaluation
    {ScheduleKind::one_f_one_b, false, 1, 1, 1, ChunkPlacement::loops, one_f_one_b, forward_loops},
    {ScheduleKind::gpipe, false, 1, 1, 1, ChunkPlacement::loops, gpipe, forward_loops},
    {ScheduleKind::interleaved, false, 2, 2, kAnyChunks, ChunkPlacement::loops, interleaved, forward_loops},
    {ScheduleKind::zb_h1, true, 1, 1, 1, ChunkPlacement::loops, zb_h1, forward_loops},
    {ScheduleKind::zb_v, true, 2, 2, 2, ChunkPlacement::vee, zb_v, forward_vee},
});

}  // namespace

const ScheduleRule& rule_of(ScheduleKind kind) {
  const auto found = std::find_if(kRules.begin(), kRules.end(), [&](const ScheduleRule& r) { return r.kind == kind; });
  ensure(found != kRules.end(), "every schedule has a rule");
  return *found;
}

}  // namespace foresail
