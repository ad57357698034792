#include "tests/workflow/small_plan.h"

#include <unistd.h>

#include <atomic>

#include "core/file.h"
#include "core/parallel.h"
#include "core/philox.h"
#include "kernels/device.h"
#include "program/compile.h"
#include "runtime/data/prepare.h"

namespace foresail::testing {
namespace {

std::filesystem::path new_folder() {
  static std::atomic<int> count{0};
  const auto folder = std::filesystem::temp_directory_path() /
                      ("foresail-workflow-" + std::to_string(getpid()) + "-" + std::to_string(count++));
  std::filesystem::create_directories(folder);
  return folder;
}

/// Paragraphs of a few words that come again and again: soon learnt in part.
void write_text(const std::filesystem::path& path) {
  const char* const words[] = {"sail ", "wind ", "fore ", "harbour ", "tide ", "keel "};
  std::string text;
  for (uint64_t paragraph = 0; paragraph < 40; ++paragraph) {
    for (uint64_t word = 0; word < 60; ++word) text += words[random_bits(1, paragraph, word) % std::size(words)];
    text += "\n\n";
  }
  write_file_atomically(path, text);
}

ModelSpec small_model() {
  ModelSpec model;
  model.name = "small";
  model.family = "llama";
  model.layers = 2, model.hidden = 32, model.heads = 2, model.kv_heads = 1, model.head_dim = 16;
  model.ffn = 64, model.vocabulary = 257, model.max_positions = 32;
  return model;
}

Job small_job() {
  Job job;
  job.model = "small";
  job.sequence_length = 16;
  job.global_batch = 4;
  job.steps = 12;
  job.optimizer.learning_rate = 1e-2;
  job.validation_fraction = 0.1;
  job.evaluation_interval_steps = 5;
  job.evaluation_batches = 2;
  job.checkpoint_interval_steps = 4;
  return job;
}

}  // namespace

SmallPlan::SmallPlan() : folder_(new_folder()) {
  set_thread_count(1);
  write_text(folder_ / "text.txt");
  PrepareOptions prepare;
  prepare.inputs = {folder_ / "text.txt"};
  prepare.out = data();
  prepare.split = DocumentSplit::blank_lines;
  prepare_dataset(prepare);

  const ModelSpec model = small_model();
  plan.job = small_job();
  plan.steps = plan.job.steps;
  plan.model_name = model.name;
  plan.model_config = write_model_config(model);
  plan.machine_name = "test";
  plan.strategy.micro_batch = 2;
  const auto device = make_cpu_device(1);
  const ProgramSet set = compile(model, plan.job, plan.strategy, plan.target, 0,
                                 [&](const OpInstance& op) { return device->workspace_bytes(op); });
  for (const Program* program : {&set.train, &set.evaluate})
    plan.target.workspace_bytes.merge(used_workspaces(*program));
  plan.program_digests = {program_digest(set.train)};
  Prediction& predicted = plan.predicted;
  predicted.arena_bytes = std::max(set.train.arena.bytes, set.evaluate.arena.bytes);
  predicted.framework_bytes = int64_t{16} << 20;
  predicted.peak_bytes = predicted.arena_bytes + predicted.framework_bytes;
  predicted.step_seconds = 1;  // so wide a band that only a defect leaves it
  predicted.step_seconds_low = 0.5, predicted.step_seconds_high = 100;
  predicted.mfu = 0.5, predicted.model_flops_per_second_per_device = 1e9;
  write();
}

SmallPlan::~SmallPlan() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void SmallPlan::write() { write_file_atomically(path(), plan_to_json(plan)); }

}  // namespace foresail::testing
