// Fine-tuning: frozen tensors keep every bit, the others train, and every strategy does the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "program/frozen.h"
#include "tests/trainer/small_run.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

using testing::run_world;
using testing::small_options;
using testing::TemporaryFolder;

using Patterns = std::vector<std::string>;

SessionRequest request_for(const std::string& strategy, Patterns frozen,
                           SessionRequest request = testing::small_request()) {
  request.job.global_batch = 8;
  request.job.checkpoint_interval_steps = 0;
  request.job.frozen = std::move(frozen);
  request.strategy = parse_strategy(strategy).strategy;
  return request;
}

using Tensors = std::map<std::string, std::vector<double>>;

/// This rank's part of every parameter.
Tensors held(const Session& session) {
  const Segment& segment = session.programs.train.arena.parameters;
  const auto* values = reinterpret_cast<const double*>(session.arena->data() + segment.offset);
  Tensors tensors;
  for (const ParameterSlice& slice : session.slices.parameters) {
    auto& tensor = tensors[slice.tensor];
    for (int64_t row = 0; row < slice.row_end - slice.row_begin; ++row) {
      const double* begin = values + slice.element_offset + row * slice.row_stride;
      tensor.insert(tensor.end(), begin, begin + slice.column_end - slice.column_begin);
    }
  }
  return tensors;
}

struct Outcome {
  std::vector<double> losses, norms;
  Tensors before, after;  ///< of rank 0
};

Outcome train(const SessionRequest& request) {
  const TemporaryFolder folder;
  Outcome outcome;
  const auto errors = run_world(static_cast<int>(request.strategy.devices()), [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device("reference", 1));
    TrainerOptions options = small_options(folder.path(), 4);
    options.on_step = [&](const StepRecord& record) {
      outcome.losses.push_back(record.loss);
      outcome.norms.push_back(record.grad_norm);
    };
    options.on_event = [&](const RunEvent& event) {
      if (event.kind == "start") outcome.before = held(*session);
    };
    run_training(*session, communicator, options);
    if (communicator.rank() == 0) outcome.after = held(*session);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return outcome;
}

const Patterns kPatterns = {"model.embed_tokens.weight", "model.layers.*.mlp.*",
                            "model.layers.*.input_layernorm.weight"};

void expect_only_named_are_kept(const Outcome& outcome, const Patterns& patterns) {
  ASSERT_EQ(outcome.losses.size(), 4u);
  ASSERT_FALSE(outcome.before.empty());
  for (const auto& [tensor, before] : outcome.before) {
    const bool is_frozen = std::any_of(patterns.begin(), patterns.end(),
                                       [&](const std::string& pattern) { return matches(pattern, tensor); });
    EXPECT_EQ(outcome.after.at(tensor) == before, is_frozen) << tensor;
  }
}

void expect_same_training(const Outcome& outcome, const Outcome& other) {
  ASSERT_EQ(outcome.losses.size(), other.losses.size());
  for (size_t i = 0; i < other.losses.size(); ++i) {
    EXPECT_NEAR(outcome.losses[i], other.losses[i], 1e-9) << i + 1;
    EXPECT_NEAR(outcome.norms[i], other.norms[i], 1e-9 * other.norms[i]) << i + 1;
  }
}

class Frozen : public ::testing::TestWithParam<const char*> {};

TEST_P(Frozen, NamedTensorsKeepEveryBitAndTheOthersTrainAsOnOneRank) {
  const Outcome outcome = train(request_for(GetParam(), kPatterns));
  expect_only_named_are_kept(outcome, kPatterns);
  expect_same_training(outcome, train(request_for("micro_batch=2", kPatterns)));
}

INSTANTIATE_TEST_SUITE_P(Trainer, Frozen,
                         ::testing::Values("micro_batch=2", "dp=2,micro_batch=2,zero_stage=1",
                                           "dp=2,micro_batch=1,zero_stage=3", "dp=2,micro_batch=2,zero_stage=2",
                                           "dp=2,tp=2,micro_batch=1,sequence_parallel=true",
                                           "pp=2,micro_batch=1,schedule=zb-h1", "tp=2,micro_batch=4,recompute=full",
                                           "dp=2,micro_batch=1,overlap=true,bucket_bytes=4096"));

class FrozenExperts : public ::testing::TestWithParam<const char*> {};

TEST_P(FrozenExperts, TheyOrTheirRouterOrAllElseKeepEveryBit) {
  const auto trained = [](const char* strategy, const Patterns& patterns) {
    return train(request_for(strategy, patterns, testing::small_expert_request()));
  };
  const Patterns choices[] = {{"*.experts.*"},
                              {"*.block_sparse_moe.gate.weight", "*.experts.*.w2.weight"},
                              {"*embed*", "*norm.weight", "*.self_attn.*", "*.gate.weight", "lm_head.weight"}};
  for (const Patterns& patterns : choices) {
    SCOPED_TRACE(patterns[0]);
    const Outcome outcome = trained(GetParam(), patterns);
    expect_only_named_are_kept(outcome, patterns);
    expect_same_training(outcome, trained("micro_batch=2", patterns));
  }
}

INSTANTIATE_TEST_SUITE_P(Trainer, FrozenExperts,
                         ::testing::Values("micro_batch=2", "dp=2,ep=2,micro_batch=2,zero_stage=1,moe_bound=1",
                                           "dp=2,micro_batch=2,zero_stage=2", "dp=4,ep=2,micro_batch=1,zero_stage=3",
                                           "tp=2,sequence_parallel=true,etp=2,micro_batch=2",
                                           "pp=2,dp=2,ep=2,micro_batch=1,schedule=zb-h1",
                                           "dp=4,ep=2,micro_batch=1,overlap=true,bucket_bytes=4096,recompute=full"));

TEST(FrozenNorm, CountsTheTrainedWeightsAlone) {
  const Outcome whole = train(request_for("micro_batch=2", {}));
  const Outcome most = train(request_for("micro_batch=2", {"model.layers.*", "model.embed_tokens.weight"}));
  const Outcome head =
      train(request_for("micro_batch=2", {"model.layers.*", "model.embed_tokens.weight", "lm_head.weight"}));
  EXPECT_EQ(whole.losses[0], most.losses[0]) << "the forward pass is the same";
  EXPECT_LT(most.norms[0], whole.norms[0]);
  EXPECT_LT(head.norms[0], most.norms[0]);
  const Outcome rest = train(request_for("micro_batch=2", {"lm_head.weight", "model.norm.weight"}));
  EXPECT_NEAR(std::hypot(rest.norms[0], most.norms[0]), whole.norms[0], 1e-12 * whole.norms[0])
      << "two complements share nothing";
}

}  // namespace
}  // namespace foresail
