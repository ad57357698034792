// How far a profiled machine can be trusted: what was not measured, and how much the measurements spread.
#pragma once

#include <cstdint>

#include "models/model_spec.h"
#include "spec/machine.h"

namespace foresail {

/// Whether any table holds every op of some step that replays of `model` at this length would run. `sequence_length` 0:
/// the model's usual one.
bool measured_in_sequence(const Machine& machine, const ModelSpec& model, int64_t sequence_length);

/// Median of the spreads of all ops and collectives that were timed more than once; 0 if there are none.
double typical_spread(const Machine& machine);

}  // namespace foresail
