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
  // Here warmup < step < total_steps, so the divisor is positive.
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(total_steps - warmup);
  return floor + 0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace foresail
