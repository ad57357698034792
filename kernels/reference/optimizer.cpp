// Step bookkeeping and AdamW. The metrics record: ops/metrics_record.h.
#include <algorithm>
#include <cmath>

#include "kernels/reference/reference.h"
#include "ops/metrics_record.h"

namespace foresail::reference {
namespace {

// Of the metrics record.
constexpr auto kSquaredNorm = index_of(StepMetric::squared_norm), kOverflow = index_of(StepMetric::overflow),
               kNorm = index_of(StepMetric::grad_norm), kFactor = index_of(StepMetric::clip_factor);

void fill_zero(const Run& run) {
  const int64_t n = run.op.outputs[0].elements();
  for (int64_t i = 0; i < n; ++i) run.set_real(0, i, 0);
}

/// True if this rank adds its share to a sum over all ranks.
bool counts(CountRule rule, const KernelContext& context) {
  if (rule == CountRule::every_expert_rank) return context.expert_replica_rank == 0;
  if (context.replica_rank != 0 || rule == CountRule::nobody) return false;
  if (rule == CountRule::first_copy) return context.tensor_rank % context.kv_copies == 0;
  return rule == CountRule::every_tensor_rank || context.tensor_rank == 0;
}

void squared_norm(const Run& run) {
  if (!counts(run.attributes().count_rule, run.context())) return;
  const int64_t n = run.op.inputs[0].elements();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += run.real_in(0, i) * run.real_in(0, i);
  run.out(0)[0] += sum;
}

/// Clipping by global norm (Pascanu, Mikolov & Bengio 2013). A norm that is not finite, or rows for experts that found no
/// room, give factor 0: skip the update.
void clip_scale(const Run& run) {
  const double norm = std::sqrt(run.in(0)[kSquaredNorm]) / run.step().loss_scale, bound = run.step().clip_norm;
  double factor = 1 / run.step().loss_scale;
  if (!std::isfinite(norm) || run.in(0)[kOverflow] > 0) {
    factor = 0;
  } else if (bound > 0 && norm > bound) {
    factor *= bound / norm;
  }
  std::copy_n(run.in(0), kSummedMetrics, run.out(0));
  run.out(0)[kNorm] = norm;
  run.out(0)[kFactor] = factor;
}

/// A factor of 0 alone is no reason: it may be an underflow.
bool skips_update(const double* metrics) {
  return metrics[kFactor] == 0 && (!std::isfinite(metrics[kNorm]) || metrics[kOverflow] > 0);
}

/// Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2, the schedule multiplier
/// inside lr): m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr (mhat / (sqrt(vhat) + eps) + decay p).
/// With a master copy the master is updated and p is the master rounded to its own type (here the same).
void adamw(const Run& run) {
  const double* metrics = run.in(1);
  if (skips_update(metrics)) return;
  const StepInputs& step = run.step();
  double *p = run.out(0), *m = run.out(1), *v = run.out(2), *master = run.has_output(3) ? run.out(3) : p;
  const double decay = run.attributes().decay ? step.weight_decay : 0;
  const int64_t n = run.op.inputs[0].elements();
  for (int64_t i = 0; i < n; ++i) {
    const double gradient = run.real_in(0, i) * metrics[kFactor];
    m[i] = step.beta1 * m[i] + (1 - step.beta1) * gradient;
    v[i] = step.beta2 * v[i] + (1 - step.beta2) * gradient * gradient;
    const double m_hat = m[i] / (1 - step.beta1_power), v_hat = v[i] / (1 - step.beta2_power);
    master[i] -= step.learning_rate * (m_hat / (std::sqrt(v_hat) + step.epsilon) + decay * master[i]);
    p[i] = master[i];
  }
}

constexpr Entry kKernels[] = {
    {OpKind::fill_zero, "-> real[*]", fill_zero},
    {OpKind::squared_norm, "real[*] -> [1]", squared_norm},
    {OpKind::clip_scale, "[6] -> [6]", clip_scale},
    {OpKind::adamw, "real[*] [6] -> [*] [*] [*] ?[*]", adamw},
};

}  // namespace

std::span<const Entry> optimizer_kernels() { return kKernels; }

}  // namespace foresail::reference
