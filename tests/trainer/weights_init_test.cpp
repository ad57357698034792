// Runs that start from a Hugging Face folder: what was exported, taken in again by another strategy on other ranks, has
// bitwise the loss that the checkpoint has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/transfer.h"
#include "runtime/trainer/start.h"
#include "tests/trainer/small_run.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

using testing::run_small;
using testing::run_world;
using testing::small_options;
using testing::SmallResult;
using testing::TemporaryFolder;

/// Transposed and stacked matrices, biases, a tied head.
ModelSpec gpt2() {
  ModelSpec model = testing::small_request().model;
  model.family = "gpt2";
  model.kv_heads = model.heads;
  model.norm = NormKind::layer_norm;
  model.activation = ActivationKind::gelu_tanh;
  model.positions = PositionKind::learned;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  model.scale_residual_init = true;
  return model;
}

SessionRequest request_for(const ModelSpec& model, const std::string& strategy) {
  SessionRequest request = testing::small_request();
  request.model = model;
  request.strategy = parse_strategy(strategy).strategy;
  return request;
}

TrainerOptions options_for(const ModelSpec& model, const std::filesystem::path& run, int64_t steps) {
  TrainerOptions options = small_options(run, steps);
  options.identity.model_config = write_model_config(model);
  return options;
}

struct Started {
  double loss = 0;     ///< of the first evaluation, before any step
  std::string digest;  ///< of the parameters
  int64_t step = -1;
  std::string said;  ///< text of the "start" event
};

/// The state in which a run begins that has its parameters from `init`.
Started start_from(const ModelSpec& model, const std::string& strategy, const std::filesystem::path& init) {
  const SessionRequest request = request_for(model, strategy);
  Started started;
  const auto errors = run_world(static_cast<int>(request.strategy.devices()), [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device("reference", 1));
    const CheckpointRanks ranks{&communicator, world_group(*session)};
    TrainerOptions options = options_for(model, "unused", 1);
    options.init = init;
    std::string said;
    options.on_event = [&](const RunEvent& event) { said = event.text; };
    const int64_t step = start_run(*session, ranks, options).step;
    const double loss = evaluate_loss(*session, options.validation, 0, 3).value();
    const auto views = segment_views(session->programs.train, session->slices, session->arena->data());
    const std::string digest = combine_digests(tensor_digests(views.front(), ranks));
    if (communicator.rank() == 0) started = {loss, digest, step, said};
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "") << strategy;
  return started;
}

TEST(WeightsInit, ExportedWeightsHaveBitwiseTheLossOfTheirCheckpointUnderEveryStrategy) {
  for (const ModelSpec& model : {testing::small_request().model, gpt2()}) {
    const TemporaryFolder folder;
    const SmallResult donor =
        run_small(request_for(model, "micro_batch=2"), options_for(model, folder.path() / "run", 12));
    const std::filesystem::path checkpoint = donor.report.checkpoint;
    export_checkpoint(checkpoint, folder.path() / "hf", {{}, 4000});
    import_weights(folder.path() / "hf", folder.path() / "step-0");
    std::string digest;
    for (const char* strategy : {"micro_batch=2", "dp=2,tp=2,micro_batch=1,zero_stage=1", "pp=2,tp=2,micro_batch=1",
                                 "dp=4,micro_batch=1,zero_stage=3"}) {
      const Started original = start_from(model, strategy, checkpoint);
      const Started exported = start_from(model, strategy, folder.path() / "hf");
      const Started imported = start_from(model, strategy, folder.path() / "step-0");
      EXPECT_TRUE(std::isfinite(original.loss));
      EXPECT_EQ(std::bit_cast<uint64_t>(exported.loss), std::bit_cast<uint64_t>(original.loss)) << strategy;
      EXPECT_EQ(std::bit_cast<uint64_t>(imported.loss), std::bit_cast<uint64_t>(original.loss)) << strategy;
      EXPECT_LT(exported.loss, std::log(23.0) - 0.2) << "the donor had learnt something";
      EXPECT_EQ(exported.step, 0);
      EXPECT_EQ(exported.digest, original.digest) << strategy;
      EXPECT_EQ(imported.digest, original.digest) << strategy;
      if (digest.empty()) digest = original.digest;
      EXPECT_EQ(exported.digest, digest) << strategy;
      EXPECT_EQ(exported.said.find("rounded"), std::string::npos) << exported.said;
    }
  }
}

TEST(WeightsInit, AFineTunedRunCarriesTheConfigThatItsWeightsCameWith) {
  const TemporaryFolder folder;
  const ModelSpec model = gpt2();
  const SmallResult donor =
      run_small(request_for(model, "micro_batch=2"), options_for(model, folder.path() / "run", 4));
  export_checkpoint(donor.report.checkpoint, folder.path() / "hf");
  TrainerOptions options = options_for(model, folder.path() / "tuned", 6);
  options.init = folder.path() / "hf";
  const SmallResult tuned = run_small(request_for(model, "micro_batch=2"), options);
  EXPECT_EQ(tuned.report.first_step, 1);
  EXPECT_EQ(Checkpoint(tuned.report.checkpoint).state().notes.count(kConfigNote), 1u);
  options = options_for(model, folder.path() / "tuned", 9);
  options.resume = true;
  const SmallResult resumed = run_small(request_for(model, "micro_batch=2"), options);
  EXPECT_EQ(resumed.report.first_step, 7);
  EXPECT_EQ(Checkpoint(resumed.report.checkpoint).state().notes.count(kConfigNote), 1u) << "after a resume too";
}

TEST(WeightsInit, RoundingIsSaidAndAnotherModelIsRefusedOnEveryRank) {
  const TemporaryFolder folder;
  const ModelSpec model = testing::small_request().model;
  const SmallResult donor =
      run_small(request_for(model, "micro_batch=2"), options_for(model, folder.path() / "run", 4));
  export_checkpoint(donor.report.checkpoint, folder.path() / "bf16", {DType::bf16, 1 << 20});
  const Started narrow = start_from(model, "dp=2,micro_batch=2", folder.path() / "bf16");
  EXPECT_EQ(narrow.said.find("rounded"), std::string::npos) << "every bf16 has its double: " << narrow.said;
  EXPECT_NE(narrow.said.find("digest " + narrow.digest), std::string::npos) << narrow.said;
  ModelSpec other = model;
  other.ffn = 32;
  const SessionRequest request = request_for(other, "dp=2,micro_batch=2");
  const auto errors = run_world(2, [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device("reference", 1));
    TrainerOptions options = options_for(other, "unused", 1);
    options.init = folder.path() / "bf16";
    start_run(*session, {&communicator, world_group(*session)}, options);
  });
  std::string all;  // whoever is left behind by the first to give up may only hear that somebody did
  for (const std::string& error : errors) {
    EXPECT_NE(error, "");
    all += error + "\n";
  }
  EXPECT_NE(all.find("mlp.gate_proj.weight"), std::string::npos) << all;
  EXPECT_NE(all.find("[24, 16]"), std::string::npos) << all;
}

TEST(WeightsInit, ACheckpointWithoutDigestsIsNotResumed) {
  const TemporaryFolder folder;
  const SessionRequest request = testing::small_request();
  const SmallResult donor = run_small(request, small_options(folder.path(), 4));
  const std::filesystem::path manifest = std::filesystem::path(donor.report.checkpoint) / kManifestName;
  std::string text = read_file(manifest);
  const std::string before = "\"manifest_digest\": \"";
  text.replace(text.find(before) + before.size(), 32, kNoDigestText);
  write_file_atomically(manifest, text);
  TrainerOptions options = small_options(folder.path(), 8);
  options.resume = true;
  try {
    run_small(request, options);
    FAIL() << "it resumed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("written by hand"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace foresail
