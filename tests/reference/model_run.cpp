#include "tests/reference/model_run.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "runtime/checkpoint/model_weights.h"

namespace foresail::testing {
namespace {

Job job_of(const Fixture& fixture, const RunSettings& settings) {
  Job job;
  job.model = fixture.model.name;
  job.sequence_length = fixture.sequence_length;
  job.global_batch = fixture.sequences;
  job.steps = 10;
  job.precision = settings.back_end == "cpu" ? "fp32" : "fp64";
  if (!fixture.trajectory) return job;
  job.optimizer.learning_rate = fixture.trajectory->learning_rate;
  job.optimizer.beta1 = fixture.trajectory->beta1;
  job.optimizer.beta2 = fixture.trajectory->beta2;
  job.optimizer.epsilon = fixture.trajectory->epsilon;
  job.optimizer.weight_decay = fixture.trajectory->weight_decay;
  job.optimizer.clip_norm = fixture.trajectory->clip_norm;
  return job;
}

template <typename Visit>
void visit_elements(const ParameterSlice& slice, const Visit& visit) {
  const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
  int64_t element = slice.element_offset;
  for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
    for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
      visit(slice.transposed_in_file ? column * slice.shape[0] + row : row * columns + column, element++);
    }
  }
}

}  // namespace

ModelRun::ModelRun(const Fixture& fixture, const RunSettings& settings)
    : model_(fixture.model), job_(job_of(fixture, settings)) {
  Strategy strategy;
  strategy.micro_batch = settings.micro_batch;
  strategy.recompute = settings.recompute;
  Target target;
  target.back_end = settings.back_end;
  target.fused_kernels = settings.fused_kernels;
  target.unfused_attention = settings.unfused_attention;
  set_thread_count(1);
  device_ = settings.back_end == "cpu" ? make_cpu_device(1) : make_reference_device();
  programs_ = compile(fixture.model, job_, strategy, target, 0,
                      [&](const OpInstance& op) { return device_->workspace_bytes(op); });
  slices_ = rank_slices(fixture.model, strategy, {}).parameters;
  arena_ = std::make_unique<Arena>(std::max(programs_.train.arena.bytes, programs_.evaluate.arena.bytes));
  executor_ = std::make_unique<Executor>(programs_.train, *device_, nullptr, *arena_, 0);
  executor_->startup();
  set_parameters();
}

void ModelRun::set_parameters() {
  std::byte* base = arena_->data() + program().arena.parameters.offset;
  for (const ParameterSlice& slice : slices_) {
    visit_elements(slice, [&](int64_t index, int64_t element) {
      const double value = initial_value_of(slice.tensor, index);
      if (program().precision.parameter == DType::f64)
        reinterpret_cast<double*>(base)[element] = value;
      else
        reinterpret_cast<float*>(base)[element] = static_cast<float>(value);
    });
  }
}

void ModelRun::take_weights(const std::filesystem::path& folder) {
  std::byte* const base = arena_->data() + program().arena.parameters.offset;
  const SegmentView parameters{Quantity::parameter, program().precision.parameter, base, slices_};
  restore_weights(folder, model_, std::span(&parameters, 1), {});
}

Tensors ModelRun::read(const Segment& segment) const {
  const std::byte* base = arena_->data() + segment.offset;
  Tensors tensors;
  for (const ParameterSlice& slice : slices_) {
    if (slice.second_holder) continue;
    int64_t elements = 1;
    for (const int64_t size : slice.shape) elements *= size;
    std::vector<double>& values = tensors[slice.tensor];
    values.resize(static_cast<size_t>(elements), std::nan(""));
    visit_elements(slice, [&](int64_t index, int64_t element) {
      values.at(static_cast<size_t>(index)) = program().precision.gradient == DType::f64
                                                  ? reinterpret_cast<const double*>(base)[element]
                                                  : reinterpret_cast<const float*>(base)[element];
    });
  }
  return tensors;
}

StepMetrics ModelRun::step(int64_t number, const FixtureBatch& batch) {
  const size_t rows = static_cast<size_t>(program().rows_per_micro_batch);
  for (int64_t m = 0; m < program().micro_batches; ++m) {
    const auto first = static_cast<std::ptrdiff_t>(rows) * m;
    std::copy_n(batch.tokens.begin() + first, rows, executor_->tokens(m).begin());
    std::copy_n(batch.targets.begin() + first, rows, executor_->targets(m).begin());
  }
  StepInputs& inputs = executor_->step_inputs();
  inputs = {};
  inputs.step = number;
  inputs.learning_rate = job_.optimizer.learning_rate;
  inputs.beta1 = job_.optimizer.beta1;
  inputs.beta2 = job_.optimizer.beta2;
  inputs.beta1_power = std::pow(inputs.beta1, static_cast<double>(number));
  inputs.beta2_power = std::pow(inputs.beta2, static_cast<double>(number));
  inputs.epsilon = job_.optimizer.epsilon;
  inputs.weight_decay = job_.optimizer.weight_decay;
  inputs.clip_norm = job_.optimizer.clip_norm;
  inputs.inverse_valid_tokens = 1.0 / static_cast<double>(batch.counted());
  executor_->step();
  return executor_->metrics();
}

}  // namespace foresail::testing
