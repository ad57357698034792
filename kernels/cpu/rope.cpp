// Rotary position embedding (Su et al. 2021), half-split as in Hugging Face transformers: element i of a head is
// rotated with element i + D/2 by an angle of its position.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/row_map.h"

#ifndef FORESAIL_KERNELS_CPU_ROPE_ARGUMENTS
#define FORESAIL_KERNELS_CPU_ROPE_ARGUMENTS
namespace foresail {
namespace {

struct Rotation {
  const float *x, *table;
  float* y;
  int64_t rotated_heads, value_columns, pairs;
  RowMap map;
  float direction;  ///< 1 forward, -1 backward
};

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// Rotates the pairs [i, i + lanes) of all heads of a row: (low, high) -> (low c - high s, high c + low s).
template <typename PartType>
HWY_INLINE void rotate_heads(const Rotation& a, PartType part, int64_t i, V32 cosine, V32 sine, const float* x,
                             float* y) {
  for (int64_t head = 0; head < a.rotated_heads; ++head) {
    const int64_t low_at = head * 2 * a.pairs + i, high_at = low_at + a.pairs;
    const V32 low = part.load(x + low_at), high = part.load(x + high_at);
    part.store(hn::NegMulAdd(high, sine, hn::Mul(low, cosine)), y + low_at);
    part.store(hn::MulAdd(low, sine, hn::Mul(high, cosine)), y + high_at);
  }
}

void rotate_rows(const Rotation& a, int64_t begin, int64_t end) {
  const int64_t rotated = a.rotated_heads * 2 * a.pairs, width = rotated + a.value_columns;
  const F32 d;
  const V32 direction = set(a.direction);
  HWY_ALIGN float interleaved[2 * kLanes];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = a.x + row * width;
    float* y = a.y + row * width;
    const float* table = a.table + a.map.position(row) * a.pairs * 2;
    V32 cosine = zero(), sine = zero();
    int64_t i = 0;
    for (; i + kLanes <= a.pairs; i += kLanes) {
      hn::LoadInterleaved2(d, table + 2 * i, cosine, sine);
      rotate_heads(a, Whole(), i, cosine, hn::Mul(sine, direction), x, y);
    }
    if (i < a.pairs) {
      const int64_t left = a.pairs - i;
      std::memset(interleaved, 0, sizeof(interleaved));
      std::memcpy(interleaved, table + 2 * i, static_cast<size_t>(2 * left) * sizeof(float));
      hn::LoadInterleaved2(d, interleaved, cosine, sine);
      rotate_heads(a, Part(left), i, cosine, hn::Mul(sine, direction), x, y);
    }
    if (x != y) std::memcpy(y + rotated, x + rotated, static_cast<size_t>(a.value_columns) * sizeof(float));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(rotate_rows);

void rotate(const OpInstance& op, const KernelArguments& a, float direction) {
  const auto& attributes = op.attributes;
  const Rotation rotation{input(a, 0),
                          input(a, 1),
                          output(a, 0),
                          attributes.heads + attributes.kv_heads,
                          attributes.kv_heads * attributes.value_width(),
                          attributes.head_dim / 2,
                          RowMap(attributes, a.context, rows_of(op.inputs[0])),
                          direction};
  parallel_ranges(rows_of(op.inputs[0]), row_grain(columns_of(op.inputs[0])), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(rotate_rows)(rotation, begin, end);
  });
}

void run_rope(const OpInstance& op, const KernelArguments& a) { rotate(op, a, 1); }
void run_rope_backward(const OpInstance& op, const KernelArguments& a) { rotate(op, a, -1); }

/// Where among the pairs YaRN's ramp lies (Peng et al. 2023, section 3.2): those before `begin`, which turn beta_fast times
/// or more over the original positions, keep their frequency, those from `end` on, beta_slow times or less, are stretched.
struct Ramp {
  double begin, end;

  explicit Ramp(const OpAttributes& a) {
    const double width = static_cast<double>(a.rotated_width());
    const auto pair = [&](double turns) {
      const double radians = static_cast<double>(a.rope_original_positions) / (2 * std::numbers::pi * turns);
      return width / 2 * std::log(radians) / std::log(a.rope_theta);
    };
    begin = std::max(0.0, std::floor(pair(a.rope_beta_fast)));
    end = std::min(width - 1, std::ceil(pair(a.rope_beta_slow)));
    if (begin == end) end += 0.001;  // as published
  }
  double at(int64_t i) const { return std::clamp((static_cast<double>(i) - begin) / (end - begin), 0.0, 1.0); }
};

/// Radians per position of pair i: theta^(-2i/R), with the length extension of the model: linear (Chen et al. 2023), YaRN
/// or that of Llama 3.1, which stretches long wavelengths, keeps short ones and blends between.
double radians_per_position(const OpAttributes& a, int64_t i) {
  const double frequency =
      std::pow(a.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(a.rotated_width()));
  if (a.rope_scaling == RopeScaling::none) return frequency;
  if (a.rope_scaling == RopeScaling::linear) return frequency / a.rope_factor;
  if (a.rope_scaling == RopeScaling::yarn) {
    const double stretched = Ramp(a).at(i);
    return frequency * (1 - stretched + stretched / a.rope_factor);
  }
  const double turns = static_cast<double>(a.rope_original_positions) * frequency / (2 * std::numbers::pi);
  if (turns > a.rope_high_frequency) return frequency;
  if (turns < a.rope_low_frequency) return frequency / a.rope_factor;
  const double kept = (turns - a.rope_low_frequency) / (a.rope_high_frequency - a.rope_low_frequency);
  return (1 - kept) * frequency / a.rope_factor + kept * frequency;
}

/// In double: an angle of thousands of radians has lost its fraction in float.
void run_rope_table(const OpInstance& op, const KernelArguments& a) {
  const int64_t pairs = op.attributes.rotated_width() / 2;
  const double magnitude = op.attributes.rope_magnitude;
  parallel_ranges(whole_length(op.attributes), 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double step = radians_per_position(op.attributes, i);
      for (int64_t position = begin; position < end; ++position) {
        float* entry = output(a, 0) + (position * pairs + i) * 2;
        entry[0] = static_cast<float>(magnitude * std::cos(static_cast<double>(position) * step));
        entry[1] = static_cast<float>(magnitude * std::sin(static_cast<double>(position) * step));
      }
    }
  });
}

void check_rotation(const OpInstance& op) {
  if (op.attributes.rotated_width() < 2 || op.attributes.rotated_width() % 2 != 0)
    refuse_operator(op, "rotation needs an even head size");
}

void check_rows(const OpInstance& op) {
  check_rotation(op);
  if (op.attributes.rotated_width() != op.attributes.head_dim) refuse_operator(op, "it rotates whole heads");
  check_row_map(op, rows_of(op.inputs[0]));
}

void check_table(const OpInstance& op) {
  const OpAttributes& a = op.attributes;
  check_rotation(op);
  if (!(a.rope_theta > 0)) refuse_operator(op, "rope_theta is not positive");
  if (a.rope_scaling != RopeScaling::none && !(a.rope_factor > 0)) refuse_operator(op, "rope_factor is not positive");
  if (a.rope_scaling == RopeScaling::llama3 &&
      !(a.rope_original_positions > 0 && a.rope_low_frequency > 0 && a.rope_high_frequency > a.rope_low_frequency)) {
    refuse_operator(op, "llama3 scaling needs original positions and 0 < low < high frequency factors");
  }
  if (a.rope_scaling == RopeScaling::yarn && !(a.rope_theta > 1 && a.rope_original_positions > 0 &&
                                               a.rope_beta_slow > 0 && a.rope_beta_fast > a.rope_beta_slow)) {
    refuse_operator(op, "yarn scaling needs a base above 1, original positions and 0 < beta_slow < beta_fast");
  }
}

}  // namespace

std::span<const CpuOp> rope_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::rope_table, .operands = "-> table[SC,RO/2,2]", .run = run_rope_table, .check = check_table},
      {.kind = OpKind::rope,
       .operands = "qkv[R,QKV] table[SC,RO/2,2] -> qkv'[R,QKV]",
       .run = run_rope,
       .check = check_rows},
      {.kind = OpKind::rope_backward,
       .operands = "dqkv'[R,QKV] table[SC,RO/2,2] -> dqkv[R,QKV]",
       .run = run_rope_backward,
       .check = check_rows},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
