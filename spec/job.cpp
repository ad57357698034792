#include "spec/job.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

constexpr std::array<std::pair<std::string_view, Precision>, 4> kPrecisions{{{"fp32", kFloat32Precision},
                                                                             {"bf16", kMixedBfloat16Precision},
                                                                             {"fp16", kMixedFloat16Precision},
                                                                             {"fp64", kFloat64Precision}}};

int64_t decay_steps_of(const OptimizerJob& optimizer, int64_t total_steps) {
  if (optimizer.decay_steps > 0) return optimizer.decay_steps;
  return std::llround(optimizer.decay_fraction * static_cast<double>(total_steps));
}

/// What is left of the way from the full rate down to the minimum, for warmup < step < total_steps.
double share_left(const OptimizerJob& optimizer, int64_t step, int64_t total_steps) {
  const auto progress_from = [&](int64_t begin) {
    return static_cast<double>(step - begin) / static_cast<double>(total_steps - begin);
  };
  if (optimizer.schedule == LearningRateSchedule::cosine) {
    return 0.5 * (1 + std::cos(std::numbers::pi * progress_from(optimizer.warmup_steps)));
  }
  const int64_t begin = std::max(optimizer.warmup_steps, total_steps - decay_steps_of(optimizer, total_steps));
  if (step <= begin) return 1;
  const double progress = progress_from(begin);
  return optimizer.decay_shape == DecayShape::linear ? 1 - progress : 1 - std::sqrt(progress);
}

}  // namespace

Precision precision_of(const Job& job) {
  for (const auto& [name, precision] : kPrecisions) {
    if (name == job.precision) return precision;
  }
  throw_bad_input("job: field 'precision'", "'" + job.precision + "' is unknown", "use fp32, bf16, fp16 or fp64");
}

Job load_job(const std::filesystem::path& path) { return job_from_json(read_file(path), path.string()); }

double learning_rate_at(const OptimizerJob& optimizer, int64_t step, int64_t total_steps) {
  const double peak = optimizer.learning_rate, floor = optimizer.minimum_learning_rate;
  const int64_t warmup = optimizer.warmup_steps;
  if (warmup > 0 && step <= warmup) {
    return peak * static_cast<double>(std::max<int64_t>(step, 0)) / static_cast<double>(warmup);
  }
  if (optimizer.schedule == LearningRateSchedule::constant) return peak;
  if (step >= total_steps) return floor;
  const double left = share_left(optimizer, step, total_steps);
  return left == 1 ? peak : floor + (peak - floor) * left;
}

}  // namespace foresail
