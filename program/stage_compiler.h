// Assembles the Programs of one pipeline stage: lowers the blocks, lays out the arena, lists calls and schedule.
#pragma once

#include "program/lower.h"
#include "program/stage_shape.h"

namespace foresail {

/// Forward, backward, reductions and optimizer.
Program compile_training(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, int stage);

/// Forward and loss over the same persistent region.
Program compile_evaluation(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, int stage);

/// Forward up to the logits, parameters only; for a stage that is the whole model.
Program compile_forward_to_logits(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of);

}  // namespace foresail
