#include "tests/trainer/small_run.h"

#include <unistd.h>

#include <atomic>

#include "core/philox.h"

namespace foresail::testing {

SessionRequest small_request() {
  SessionRequest request;
  ModelSpec& model = request.model;
  model.name = "small";
  model.family = "llama";
  model.layers = 2, model.hidden = 16, model.heads = 4, model.kv_heads = 2, model.head_dim = 4;
  model.ffn = 24, model.vocabulary = 23, model.max_positions = 16;
  request.job.sequence_length = 8;
  request.job.global_batch = 4;
  request.job.precision = "fp64";
  request.job.optimizer.learning_rate = 1e-2;
  request.job.optimizer.warmup_steps = 3;
  request.job.evaluation_interval_steps = 5;
  request.job.evaluation_batches = 2;
  request.job.checkpoint_interval_steps = 4;
  request.job.checkpoints_kept = 2;
  request.strategy.micro_batch = 2;
  request.target.back_end = "reference";
  return request;
}

SessionRequest small_expert_request() {
  SessionRequest request = small_request();
  ModelSpec& model = request.model;
  model.family = "mixtral";
  model.init_standard_deviation = 0.1;
  model.moe.experts = 4;
  model.moe.experts_per_token = 2;
  model.moe.expert_ffn = 9;
  model.moe.balance_coefficient = 0.02;
  return request;
}

SampleReader rule_samples(int64_t vocabulary, uint64_t seed) {
  return [=](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
    const auto stream = static_cast<uint64_t>(index);
    int64_t token = random_bits(seed, stream, 0) % vocabulary;
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(token);
      const bool surprise = random_bits(seed, stream, 2 * i + 1) % 8 == 0;
      token = surprise ? random_bits(seed, stream, 2 * i + 2) % vocabulary : (3 * token + 5) % vocabulary;
      targets[i] = static_cast<int32_t>(token);
    }
  };
}

TemporaryFolder::TemporaryFolder() {
  static std::atomic<int> count{0};
  path_ = std::filesystem::temp_directory_path() /
          ("foresail-trainer-" + std::to_string(getpid()) + "-" + std::to_string(count++));
  std::filesystem::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TrainerOptions small_options(const std::filesystem::path& run, int64_t steps) {
  TrainerOptions options;
  options.run = run;
  options.total_steps = options.stop_after = steps;
  options.training = rule_samples(23, 1);
  options.validation = rule_samples(23, 2);
  options.identity.plan_digest = "plan";
  options.identity.dataset_identity = "rule";
  options.identity.model_config = "small";
  options.identity.seed = 1234;
  return options;
}

SmallResult run_small(const SessionRequest& request, const TrainerOptions& options) {
  auto communicator = make_local_communicator();
  auto session = make_session(request, *communicator, make_device(request.target.back_end, 1));
  SmallResult result{run_training(*session, *communicator, options), {}};
  const ArenaMap& map = session->programs.train.arena;
  for (const Segment& segment : {map.parameters, map.moment1, map.moment2}) {
    const std::byte* at = session->arena->data() + segment.offset;
    result.state.insert(result.state.end(), at, at + segment.bytes);
  }
  return result;
}

}  // namespace foresail::testing
