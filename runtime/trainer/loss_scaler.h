// Dynamic loss scaling for fp16 (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2): gradients are
// scaled up so that small ones do not vanish in 16 bits; the scale halves whenever one overflows (the update is left
// out), and doubles after a long stretch without.
#pragma once

#include <string>

#include "spec/job.h"

namespace foresail {

struct LossScaler {
  double scale = 1;
  int64_t steps_since_change = 0;  ///< without overflow
  bool operator==(const LossScaler&) const = default;
};

/// A fixed scale of 1 unless the job trains in fp16: only there can gradients overflow or vanish in storage.
LossScaler first_loss_scaler(const Job& job);

/// What the next step uses. A scale at its minimum stays there when a gradient overflows.
LossScaler after_step(const LossScaler& scaler, const Job& job, bool overflowed);

/// True if a gradient that overflowed may become finite with a smaller scale.
bool can_shrink(const LossScaler& scaler, const Job& job);

/// Lossless text for a checkpoint's notes, and back; throws bad_input naming `source` for other text.
std::string to_text(const LossScaler& scaler);
LossScaler loss_scaler_from(const std::string& text, const std::string& source);

}  // namespace foresail
