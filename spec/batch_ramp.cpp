#include "spec/batch_ramp.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "core/round_up.h"

namespace foresail {
namespace {

constexpr int64_t kOpen = std::numeric_limits<int64_t>::max();

/// What is left to train while stages are counted off: by steps if the job states them, else by tokens.
struct Rest {
  int64_t steps = kOpen, tokens = kOpen;

  static Rest of(const Job& job) {
    if (job.steps > 0) return {job.steps, kOpen};
    return {kOpen, job.tokens > 0 ? job.tokens : kOpen};
  }
  /// Takes the steps of a stage that wants `wanted` of them.
  int64_t take(int64_t wanted, int64_t tokens_per_step) {
    const int64_t by_tokens = tokens == kOpen ? kOpen : divide_up(tokens, tokens_per_step);
    const int64_t taken = std::min({wanted, steps, by_tokens});
    if (steps != kOpen) steps -= taken;
    if (tokens != kOpen) tokens = std::max<int64_t>(0, tokens - taken * tokens_per_step);
    return taken;
  }
};

}  // namespace

std::vector<BatchStage> batch_stages(const Job& job) {
  if (job.sequence_length < 1 || job.global_batch < 1) return {};
  std::vector<BatchStage> stages;
  Rest rest = Rest::of(job);
  int64_t sample = 0;
  for (const BatchRampStage& ramp : job.batch_ramp) {
    const int64_t tokens_per_step = ramp.global_batch * job.sequence_length;
    const int64_t steps = rest.take(divide_up(ramp.tokens, tokens_per_step), tokens_per_step);
    stages.push_back({ramp.global_batch, sample, steps});
    sample += steps * ramp.global_batch;
  }
  const bool open = job.steps <= 0 && job.tokens <= 0;
  stages.push_back({job.global_batch, sample, open ? 0 : rest.take(kOpen, job.global_batch * job.sequence_length)});
  return stages;
}

size_t batch_stage_at(const std::vector<BatchStage>& stages, int64_t samples) {
  size_t stage = 0;
  while (stage + 1 < stages.size() && samples >= stages[stage + 1].first_sample) ++stage;
  return stage;
}

int64_t steps_of(const Job& job) {
  if (job.steps > 0) return job.steps;
  if (job.tokens <= 0) return 0;
  int64_t steps = 0;
  for (const BatchStage& stage : batch_stages(job)) steps += stage.steps;
  return steps;
}

std::string batch_ramp_text(const Job& job) {
  std::string text;
  const std::vector<BatchStage> stages = batch_stages(job);
  for (size_t i = 0; i + 1 < stages.size(); ++i) {
    text += fmt::format("{} for {} steps, ", stages[i].global_batch, stages[i].steps);
  }
  return text.empty() ? text : text + fmt::format("then {}", job.global_batch);
}

std::string batch_ramp_problem(const Job& job) {
  int64_t before = 0;
  for (const BatchRampStage& stage : job.batch_ramp) {
    if (stage.global_batch <= before) {
      return before == 0 ? "has a stage without sequences"
                         : fmt::format("goes from {} to {} sequences: batches must ascend", before, stage.global_batch);
    }
    if (stage.tokens < 1) return fmt::format("states no tokens for {} sequences", stage.global_batch);
    before = stage.global_batch;
  }
  if (before == 0 || job.global_batch <= 0 || before < job.global_batch) return "";
  return fmt::format("ends with {} sequences, the global batch has {}: stages are smaller than it", before,
                     job.global_batch);
}

}  // namespace foresail
