#include "profiler/basics.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "profiler/samples.h"
#include "runtime/executor/arena.h"

namespace foresail {
namespace {

constexpr int64_t kCopyBytes = int64_t{64} << 20;  // per array; larger than any cache share of a rank
constexpr int64_t kCopyGrain = int64_t{1} << 20;
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

OpInstance product(int64_t rows, int64_t inner, int64_t columns) {
  const auto matrix = [](int64_t r, int64_t c) { return TensorType{DType::f32, {r, c}}; };
  return {.kind = OpKind::linear,
          .attributes = {},
          .inputs = {matrix(rows, inner), matrix(columns, inner)},
          .outputs = {matrix(rows, columns)}};
}

/// Every row of a product of experts its even share, source by source.
void fill_counts(const OpInstance& op, int32_t* counts, int64_t size) {
  const int64_t rows = op.attributes.routed_rows > 0 ? op.attributes.routed_rows : op.inputs[0].shape[0];
  for (int64_t i = 0; i < size; ++i) counts[i] = static_cast<int32_t>(rows * (i + 1) / size - rows * i / size);
}

/// What integer operand `input` may hold: ids in range, different experts in a row, a slot of its own for every choice,
/// counts of rows that there are.
void fill_integers(const OpInstance& op, size_t input, int64_t vocabulary, int32_t* at) {
  const int64_t count = op.inputs[input].elements(), experts = op.attributes.experts;
  uint32_t state = 521288629u;
  const auto next = [&state] { return state ^= state << 13, state ^= state >> 17, state ^= state << 5; };
  switch (op.kind) {
    case OpKind::expert_linear:
    case OpKind::expert_linear_backward_input:
    case OpKind::expert_linear_backward_weight: fill_counts(op, at, count); return;
    case OpKind::moe_dispatch_backward:
    case OpKind::moe_combine:
    case OpKind::moe_combine_backward:
      for (int64_t i = 0; i < count; ++i) at[i] = static_cast<int32_t>(i < op.attributes.expert_rows ? i : -1);
      return;
    default: break;
  }
  const bool chosen = op.kind == OpKind::moe_dispatch || op.kind == OpKind::moe_route_backward ||
                      (op.kind == OpKind::moe_statistics && input == 1);
  for (int64_t i = 0; i < count; ++i) {
    at[i] =
        static_cast<int32_t>(chosen ? i % experts : static_cast<int64_t>(next() % static_cast<uint64_t>(vocabulary)));
  }
}

/// Small numbers.
void fill_reals(const TensorType& type, std::byte* at) {
  uint32_t state = 521288629u;
  const auto next = [&state] { return state ^= state << 13, state ^= state >> 17, state ^= state << 5; };
  if (type.dtype == DType::f64) {
    std::fill_n(reinterpret_cast<double*>(at), type.elements(), 1.0);
    return;
  }
  auto* values = reinterpret_cast<float*>(at);
  for (int64_t i = 0; i < type.elements(); ++i) values[i] = 0.01f + static_cast<float>(next() >> 8) * 0x1p-24f * 0.1f;
}

/// One op with operands of its own.
class StandaloneOp {
 public:
  StandaloneOp(Device& device, const OpInstance& op, int64_t vocabulary)
      : kernel_(device.bind(op)), arena_(operand_bytes(op, device)) {
    int64_t at = 0;
    const auto place = [&](const TensorType& type) {
      std::byte* data = arena_.data() + at;
      if (type.dtype != DType::i32) fill_reals(type, data);
      at += aligned(type.bytes());
      return data;
    };
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      std::byte* data = place(op.inputs[i]);
      if (op.inputs[i].dtype == DType::i32) fill_integers(op, i, vocabulary, reinterpret_cast<int32_t*>(data));
      inputs_.push_back(data);
    }
    for (const TensorType& type : op.outputs) outputs_.push_back(place(type));
    workspace_ = arena_.data() + at;
    step_.inverse_valid_tokens = 1e-3;
    step_.learning_rate = 1e-6;
    context_.step = &step_;
    context_.context_size = static_cast<int32_t>(op.attributes.context_parallel);
  }

  void run() { kernel_->run({.inputs = inputs_, .outputs = outputs_, .workspace = workspace_, .context = context_}); }

 private:
  std::unique_ptr<Kernel> kernel_;
  Arena arena_;
  std::vector<void*> inputs_, outputs_;
  void* workspace_ = nullptr;
  StepInputs step_;
  KernelContext context_;
};

Measurement combined_one(Team& team, const Measurement& own) { return team.combined(std::span(&own, 1)).front(); }

}  // namespace

double measure_copy(Team& team, const RepeatLimits& limits) {
  Arena arena(2 * kCopyBytes);
  std::byte* from = arena.data();
  std::byte* to = arena.data() + kCopyBytes;
  const Measurement own = repeat(team, limits, [&] {
    parallel_ranges(kCopyBytes, kCopyGrain, [&](int64_t begin, int64_t end, int) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  });
  return 2.0 * static_cast<double>(kCopyBytes) / combined_one(team, own).seconds;
}

double measure_peak(Team& team, Device& device, const RepeatLimits& limits) {
  double best = 0;
  for (const OpInstance& op : {product(1024, 1024, 1024), product(2048, 1024, 4096), product(512, 384, 1536)}) {
    const Measurement measured = measure_op(team, device, op, 1, limits);
    const auto& a = op.inputs[0].shape;
    const double flops =
        2.0 * static_cast<double>(a[0]) * static_cast<double>(a[1]) * static_cast<double>(op.inputs[1].shape[0]);
    best = std::max(best, flops / measured.seconds);
  }
  return best;
}

int64_t operand_bytes(const OpInstance& op, Device& device) {
  int64_t bytes = aligned(device.workspace_bytes(op)) + kAlignment;
  for (const auto* types : {&op.inputs, &op.outputs}) {
    for (const TensorType& type : *types) bytes += aligned(type.bytes());
  }
  return bytes;
}

Measurement measure_op(Team& team, Device& device, const OpInstance& op, int64_t vocabulary,
                       const RepeatLimits& limits) {
  StandaloneOp standalone(device, op, vocabulary);
  return combined_one(team, repeat(team, limits, [&] { standalone.run(); }));
}

}  // namespace foresail
