// 16-bit operands for a back end whose kernels compute in f32: operands are widened into workspace, the f32 kernel runs
// there, and what it wrote is rounded back. Correct for every operator, and slow: a back end that has 16-bit kernels
// binds those.
#pragma once

#include <memory>

#include "kernels/device.h"
#include "ops/rounded_storage.h"

namespace foresail {

/// Workspace for the widened copies, which lie before the inner kernel's own workspace.
int64_t widened_bytes(const OpInstance& op);

/// `inner` is bound for widened(op).
std::unique_ptr<Kernel> with_rounded_storage(const OpInstance& op, std::unique_ptr<Kernel> inner);

}  // namespace foresail
