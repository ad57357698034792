#include "runtime/trainer/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "core/error.h"

namespace foresail {
namespace {

constexpr double kStep = 2;          // a power of two: scaling rounds nothing
constexpr double kLargest = 0x1p24;  // beyond it even the smallest f16 gradient has all its bits

bool is_dynamic(const Job& job) { return precision_of(job).activation == DType::f16; }

}  // namespace

LossScaler first_loss_scaler(const Job& job) { return {is_dynamic(job) ? job.loss_scale.initial : 1, 0}; }

bool can_shrink(const LossScaler& scaler, const Job& job) {
  return is_dynamic(job) && scaler.scale > job.loss_scale.minimum;
}

LossScaler after_step(const LossScaler& scaler, const Job& job, bool overflowed) {
  if (!is_dynamic(job)) return scaler;
  if (overflowed) return {std::max(job.loss_scale.minimum, scaler.scale / kStep), 0};
  if (scaler.steps_since_change + 1 < job.loss_scale.growth_interval_steps) {
    return {scaler.scale, scaler.steps_since_change + 1};
  }
  return {std::min(kLargest, scaler.scale * kStep), 0};
}

std::string to_text(const LossScaler& scaler) {
  return fmt::format("{:.17g} {}", scaler.scale, scaler.steps_since_change);
}

LossScaler loss_scaler_from(const std::string& text, const std::string& source) {
  LossScaler scaler;
  std::istringstream words(text);
  std::string rest;
  const bool complete = static_cast<bool>(words >> scaler.scale >> scaler.steps_since_change) && !(words >> rest);
  if (!complete || !std::isfinite(scaler.scale) || scaler.scale <= 0 || scaler.steps_since_change < 0) {
    throw_bad_input(source, fmt::format("the loss scale '{}' is not a positive number and a count of steps", text),
                    "resume from another checkpoint with --resume=step-N");
  }
  return scaler;
}

}  // namespace foresail
