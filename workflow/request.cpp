#include "workflow/request.h"

#include <fmt/format.h>

#include "core/error.h"

namespace foresail {
namespace {

constexpr int64_t kMostSequence = int64_t{1} << 24;
constexpr int64_t kMostBatch = int64_t{1} << 24;  // what a plan may hold
constexpr int64_t kMostTokens = int64_t{1} << 60;

void require_range(const char* flag, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return;
  throw_bad_input(fmt::format("{} {}", flag, value), "out of range",
                  fmt::format("use a whole number from 1 to {}", most));
}

}  // namespace

void resolve(const RequestInputs& inputs, SearchRequest& request) {
  require_range("--seq-len", inputs.sequence_length, kMostSequence);
  require_range("--global-batch", inputs.global_batch, kMostBatch);
  require_range("--tokens", inputs.tokens, kMostTokens);
  require_range("--dataset-bytes", inputs.dataset_bytes, kMostTokens);
  if (inputs.machine.empty()) {
    throw_bad_input("--machine", "no machine was named",
                    "name a catalogue machine or a machine.json of foresail profile");
  }
  request.machine = load_machine(inputs.machine);
  request.stack = load_stack(inputs.stack.empty() ? "foresail" : inputs.stack);
  Job& job = request.job;
  if (inputs.job.empty()) {
    if (request.machine.kind != "profiled") job.precision = request.stack.precision;
  } else {
    job = load_job(inputs.job);
  }
  if (!inputs.model.empty()) job.model = inputs.model;
  if (job.model.empty()) {
    throw_bad_input("--model", "no model was named, nor does the job name one",
                    "name a catalogue model or a config.json");
  }
  request.model = load_model(job.model);
  if (inputs.sequence_length > 0) job.sequence_length = inputs.sequence_length;
  if (job.sequence_length == 0) job.sequence_length = request.model.max_positions;
  if (job.sequence_length < 1) {
    throw_bad_input("--seq-len", "neither flag, job nor model give a sequence length", "add --seq-len S");
  }
  if (inputs.global_batch > 0) job.global_batch = inputs.global_batch;
  if (inputs.tokens > 0) job.tokens = inputs.tokens, job.steps = 0;
  if (inputs.dataset_bytes > 0) job.dataset_bytes = inputs.dataset_bytes;
  precision_of(job);  // refuses an unknown one before anything is searched
}

std::string settle_global_batch(SearchRequest& request) {
  if (request.job.global_batch > 0) return "";
  const ProposedBatch proposed =
      propose_global_batch(request.model, request.job.sequence_length, request.device_counts);
  request.job.global_batch = proposed.sequences;
  return proposed.reason;
}

}  // namespace foresail
