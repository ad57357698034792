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

SessionRequest request_for(const std::string& strategy, std::vector<std::string> frozen) {
  SessionRequest request = testing::small_request();
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

const std::vector<std::string> kPatterns = {"model.embed_tokens.weight", "model.layers.*.mlp.*",
                                            "model.layers.*.input_layernorm.weight"};

class Frozen : public ::testing::TestWithParam<const char*> {};

TEST_P(Frozen, NamedTensorsKeepEveryBitAndTheOthersTrainAsOnOneRank) {
  const Outcome outcome = train(request_for(GetParam(), kPatterns));
  ASSERT_EQ(outcome.losses.size(), 4u);
  ASSERT_FALSE(outcome.before.empty());
  for (const auto& [tensor, before] : outcome.before) {
    const bool is_frozen = std::any_of(kPatterns.begin(), kPatterns.end(),
                                       [&](const std::string& pattern) { return matches(pattern, tensor); });
    EXPECT_EQ(outcome.after.at(tensor) == before, is_frozen) << tensor;
  }
  const Outcome alone = train(request_for("micro_batch=2", kPatterns));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(outcome.losses[i], alone.losses[i], 1e-9) << i + 1;
    EXPECT_NEAR(outcome.norms[i], alone.norms[i], 1e-9 * alone.norms[i]) << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Trainer, Frozen,
                         ::testing::Values("micro_batch=2", "dp=2,micro_batch=2,zero_stage=1",
                                           "dp=2,micro_batch=1,zero_stage=3", "dp=2,micro_batch=2,zero_stage=2",
                                           "dp=2,tp=2,micro_batch=1,sequence_parallel=true",
                                           "pp=2,micro_batch=1,schedule=zb-h1", "tp=2,micro_batch=4,recompute=full",
                                           "dp=2,micro_batch=1,overlap=true,bucket_bytes=4096"));

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
