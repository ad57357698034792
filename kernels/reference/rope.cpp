// Rotary position embedding (Su et al. 2021), half-split as in Hugging Face transformers: element i of a head is
// rotated with element i + D/2.
//
// The table may be f64 or f32, because a model graph has it in f32 (ops/op.h) whatever the precision of the run.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

/// The pair, not whole, that turns `turns` times over the original positions.
double pair_of_turns(const OpAttributes& a, double turns) {
  const double wavelength = static_cast<double>(a.rope_original_positions) / turns;
  return static_cast<double>(a.rotated_width()) * std::log(wavelength / (2 * std::numbers::pi)) /
         (2 * std::log(a.rope_theta));
}

/// YaRN (Peng et al. 2023, section 3.2): which share of pair i is stretched: 0 for those that turn often, 1 for those that
/// turn rarely, a ramp between (`_compute_yarn_parameters` in transformers).
double interpolated(const OpAttributes& a, int64_t i) {
  const double low = std::max(std::floor(pair_of_turns(a, a.rope_beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of_turns(a, a.rope_beta_slow)), static_cast<double>(a.rotated_width() - 1));
  if (low == high) high += 0.001;
  return std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

/// Radians per position of pair i: theta^(-2i/D), with the length extension of the model.
/// linear: positions divided by the factor (Chen et al. 2023). llama3: wavelengths up to original / high_frequency
/// stay, those from original / low_frequency are stretched by the factor, between them the two are blended (Llama 3.1;
/// `_compute_llama3_parameters` in transformers). yarn: `interpolated` of the stretched one, the rest of the other.
double inverse_frequency(const OpAttributes& a, int64_t i) {
  const double frequency = std::pow(a.rope_theta, -2.0 * i / a.rotated_width());
  if (a.rope_scaling == RopeScaling::none) return frequency;
  if (a.rope_scaling == RopeScaling::linear) return frequency / a.rope_factor;
  if (a.rope_scaling == RopeScaling::yarn) {
    const double share = interpolated(a, i);
    return share * frequency / a.rope_factor + (1 - share) * frequency;
  }
  const double original = static_cast<double>(a.rope_original_positions);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / a.rope_high_frequency) return frequency;
  if (wavelength > original / a.rope_low_frequency) return frequency / a.rope_factor;
  const double smooth = (original / wavelength - a.rope_low_frequency) / (a.rope_high_frequency - a.rope_low_frequency);
  return (1 - smooth) * frequency / a.rope_factor + smooth * frequency;
}

template <typename T>
void fill_table(const Run& run, T* table) {
  const int64_t positions = run.out_dim(0, 0), pairs = run.out_dim(0, 1);
  for (int64_t s = 0; s < positions; ++s) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = s * inverse_frequency(run.attributes(), i);
      table[(s * pairs + i) * 2] = static_cast<T>(run.attributes().rope_magnitude * std::cos(angle));
      table[(s * pairs + i) * 2 + 1] = static_cast<T>(run.attributes().rope_magnitude * std::sin(angle));
    }
  }
}

void rope_table(const Run& run) {
  if (run.op.outputs[0].dtype == DType::f32) {
    fill_table(run, static_cast<float*>(run.arguments.outputs[0]));
  } else {
    fill_table(run, run.out(0));
  }
}

/// Rotates query and key heads by +angle (direction 1) or back (-1) and copies the value heads. y may be x.
template <typename T>
void rotate(const Run& run, const T* tables, double direction) {
  const OpAttributes& a = run.attributes();
  const int64_t rows = run.in_dim(0, 0), width = run.in_dim(0, 1), pairs = a.head_dim / 2;
  const RowMap map(a, run.context(), rows);
  for (int64_t t = 0; t < rows; ++t) {
    const double* x = run.in(0) + t * width;
    const T* table = tables + map.position(t) * pairs * 2;
    double* y = run.out(0) + t * width;
    for (int64_t h = 0; h < a.heads + a.kv_heads; ++h) {
      for (int64_t i = 0; i < pairs; ++i) {
        const double c = table[2 * i], s = direction * table[2 * i + 1];
        const int64_t low = h * a.head_dim + i, high = low + pairs;
        const double x_low = x[low], x_high = x[high];
        y[low] = x_low * c - x_high * s;
        y[high] = x_high * c + x_low * s;
      }
    }
    for (int64_t j = (a.heads + a.kv_heads) * a.head_dim; j < width; ++j) y[j] = x[j];
  }
}

void rotate(const Run& run, double direction) {
  if (run.op.inputs[1].dtype == DType::f32) {
    rotate(run, static_cast<const float*>(run.arguments.inputs[1]), direction);
  } else {
    rotate(run, run.in(1), direction);
  }
}

void rope(const Run& run) { rotate(run, 1); }
void rope_backward(const Run& run) { rotate(run, -1); }

void check_head(const Run& run) {
  require(run, run.attributes().rotated_width() % 2 == 0, "rotation needs an even head size");
}

void check_rotation(const Run& run) {
  check_head(run);
  require(run, run.attributes().rotated_width() == run.attributes().head_dim, "whole heads are rotated");
  require_row_map(run, run.in_dim(0, 0));
}

void check_table(const Run& run) {
  const OpAttributes& a = run.attributes();
  check_head(run);
  require(run, a.rope_theta > 0, "rope_theta is not positive");
  require(run, a.rope_scaling == RopeScaling::none || a.rope_factor > 0, "rope_factor is not positive");
  if (a.rope_scaling == RopeScaling::llama3) {
    require(run,
            a.rope_original_positions > 0 && a.rope_low_frequency > 0 && a.rope_high_frequency > a.rope_low_frequency,
            "llama3 scaling needs original positions and 0 < low < high frequency factors");
  }
  if (a.rope_scaling == RopeScaling::yarn) {
    require(run, a.rope_theta > 1, "yarn scaling needs a base above 1");
    require(run, a.rope_original_positions > 0 && a.rope_beta_slow > 0 && a.rope_beta_fast > a.rope_beta_slow,
            "yarn scaling needs original positions and 0 < beta_slow < beta_fast");
  }
}

constexpr Entry kKernels[] = {
    {OpKind::rope_table, "-> table[S*C,RO2,2]", rope_table, check_table},
    {OpKind::rope, "[T,QKV] table[S*C,RO2,2] -> [T,QKV]", rope, check_rotation},
    {OpKind::rope_backward, "[T,QKV] table[S*C,RO2,2] -> [T,QKV]", rope_backward, check_rotation},
};

}  // namespace

std::span<const Entry> rope_kernels() { return kKernels; }

}  // namespace foresail::reference
