// Programs of the compiler on the reference device: what a step computes does not depend on how it is laid out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "core/philox.h"
#include "program/check.h"
#include "program/compile.h"
#include "runtime/executor/executor.h"

namespace foresail {
namespace {

ModelSpec small_llama() {
  ModelSpec model;
  model.name = "small-llama";
  model.family = "llama";
  model.layers = 2, model.hidden = 16, model.heads = 4, model.kv_heads = 2, model.head_dim = 4;
  model.ffn = 24, model.vocabulary = 29, model.max_positions = 16;
  return model;
}

ModelSpec small_gpt2() {
  ModelSpec model = small_llama();
  model.name = "small-gpt2";
  model.family = "gpt2";
  model.kv_heads = 4;
  model.norm = NormKind::layer_norm;
  model.activation = ActivationKind::gelu_tanh;
  model.positions = PositionKind::learned;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = model.tied_embeddings = true;
  return model;
}

Job small_job() {
  Job job;
  job.sequence_length = 8;
  job.global_batch = 4;
  job.precision = "fp64";
  return job;
}

/// A Program ready to run on the reference device, with normal parameters and periodic data.
struct SmallRun {
  ProgramSet set;
  std::unique_ptr<Device> device = make_reference_device();
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Executor> train, evaluate;

  SmallRun(const ModelSpec& model, const Strategy& strategy) {
    Target target;
    target.back_end = "reference";
    const auto asked = [this](const OpInstance& op) { return device->workspace_bytes(op); };
    set = compile(model, small_job(), strategy, target, 0, asked);
    arena = std::make_unique<Arena>(std::max(set.train.arena.bytes, set.evaluate.arena.bytes));
    train = std::make_unique<Executor>(set.train, *device, nullptr, *arena, 0);
    evaluate = std::make_unique<Executor>(set.evaluate, *device, nullptr, *arena, 0);
    // Numbers go by tensor, so that two layouts of the same model hold the same model.
    for (const ParameterSlice& slice : rank_slices(model, strategy, {}).parameters) {
      auto* values =
          reinterpret_cast<double*>(arena->data() + set.train.arena.parameters.offset) + slice.element_offset;
      const int64_t columns = slice.column_end - slice.column_begin;
      for (int64_t i = 0; i < slice.elements(); ++i) {
        double& value = values[i / columns * slice.row_stride + i % columns];
        value = 0.1 * random_normal(1, std::hash<std::string>{}(slice.tensor), static_cast<uint64_t>(i));
        if (slice.init.kind == InitKind::ones) value += 1;
      }
    }
    prepare(*train, set.train, model.vocabulary);
  }

  static void prepare(Executor& executor, const Program& program, int64_t vocabulary) {
    executor.startup();
    const int64_t rows = program.rows_per_micro_batch;
    for (int64_t m = 0; m < program.micro_batches; ++m) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = m * rows + row;
        executor.tokens(m)[static_cast<size_t>(row)] = static_cast<int32_t>((at * at + at) % vocabulary);
        executor.targets(m)[static_cast<size_t>(row)] = static_cast<int32_t>((at * at + 3 * at + 2) % vocabulary);
      }
    }
    executor.step_inputs().inverse_valid_tokens = 1.0 / static_cast<double>(rows * program.micro_batches);
    executor.step_inputs().learning_rate = 1e-2;
    executor.step_inputs().clip_norm = 1.0;
  }

  std::vector<double> losses(int steps) {
    std::vector<double> result;
    for (int step = 1; step <= steps; ++step) {
      StepInputs& inputs = train->step_inputs();
      inputs.step = step;
      inputs.beta1_power = std::pow(inputs.beta1, step);
      inputs.beta2_power = std::pow(inputs.beta2, step);
      train->step();
      result.push_back(train->metrics().loss);
    }
    return result;
  }
};

Strategy strategy(int64_t micro_batch, Recompute recompute) {
  Strategy result;
  result.micro_batch = micro_batch;
  result.recompute = recompute;
  return result;
}

class CompiledProgram : public ::testing::TestWithParam<const char*> {
 protected:
  const ModelSpec model_ = std::string(GetParam()) == "gpt2" ? small_gpt2() : small_llama();
};

TEST_P(CompiledProgram, IsSoundAndItsLossFalls) {
  SmallRun run(model_, strategy(4, Recompute::none));
  EXPECT_EQ(check_program(run.set.train), std::vector<std::string>{});
  const auto losses = run.losses(30);
  EXPECT_NEAR(losses[0], std::log(29.0), 0.5);
  EXPECT_LT(losses.back(), 0.7 * losses[0]);
}

TEST_P(CompiledProgram, RecomputingChangesNoBit) {
  const auto kept = SmallRun(model_, strategy(2, Recompute::none)).losses(5);
  const auto replayed = SmallRun(model_, strategy(2, Recompute::full)).losses(5);
  EXPECT_EQ(kept, replayed);
}

TEST_P(CompiledProgram, MicroBatchesAddUpToTheBatch) {
  const auto whole = SmallRun(model_, strategy(4, Recompute::none)).losses(5);
  const auto parts = SmallRun(model_, strategy(1, Recompute::none)).losses(5);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-10);
}

TEST_P(CompiledProgram, EvaluationSeesTheLossThatTrainingSees) {
  SmallRun run(model_, strategy(2, Recompute::none));
  run.prepare(*run.evaluate, run.set.evaluate, model_.vocabulary);
  run.evaluate->step();
  const double evaluated = run.evaluate->metrics().loss;
  run.prepare(*run.train, run.set.train, model_.vocabulary);
  run.train->step();
  EXPECT_NEAR(run.train->metrics().loss, evaluated, 1e-12);
}

TEST_P(CompiledProgram, NothingOutsideTheBuffersIsTouched) {
  SmallRun run(model_, strategy(2, Recompute::full));
  const auto gaps = arena_gaps(run.set.train);
  for (const Segment& gap : gaps) std::memset(run.arena->data() + gap.offset, 0xCD, static_cast<size_t>(gap.bytes));
  run.losses(3);
  for (const Segment& gap : gaps) {
    for (int64_t i = 0; i < gap.bytes; ++i) {
      ASSERT_EQ(run.arena->data()[gap.offset + i], std::byte{0xCD}) << "at " << gap.offset + i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CompiledProgram, ::testing::Values("llama", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foresail
