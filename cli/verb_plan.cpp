// foresail plan
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/verb.h"
#include "workflow/plan.h"

namespace foresail {

std::function<Exit()> add_plan(CLI::App& app, const RankEnvironment&) {
  struct Flags {
    PlanOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  PlanOptions& options = flags->options;
  app.add_option("--model", options.model, "A catalogue name or a path to a config.json (default: the job's)");
  app.add_option("--machine", options.machine, "A catalogue name (dgx-a100-80gb, ...) or a machine.json")->required();
  add_path(app, "--job", options.job, "job.json; flags override its fields");
  app.add_option(
      "--devices", options.devices,
      "N, A,B,C or A..B, which tries every count from A to B (default: the machine's own count).\n"
      "A proposed global batch is a multiple of all counts if that is no larger than it would be anyway, else\n"
      "of the largest; counts that do not divide it have fewer strategies, refused ones say why");
  add_count(app, "--seq-len", options.sequence_length, "Tokens per sequence");
  add_count(app, "--global-batch", options.global_batch, "Sequences per step (default: proposed, with its reason)");
  add_count(app, "--tokens", options.tokens, "Tokens to train");
  add_bytes(app, "--dataset-bytes", options.dataset_bytes, "Size of the dataset");
  app.add_option("--objective", options.objective, "time, cost or throughput")
      ->check(CLI::IsMember({"time", "cost", "throughput"}));
  add_positive(app, "--deadline", options.deadline_days, "Days by which the run must end");
  add_positive(app, "--budget", options.budget_usd, "USD that the run may cost");
  add_bytes(app, "--memory", options.memory_bytes, "Memory ceiling per device (default: what it has)");
  add_not_built(app, "--spares", true, "Spare devices");
  add_not_built(app, "--assumptions", true, "File of prices and rates");
  add_count(app, "--top", options.top, "How many plans to show");
  app.add_option("--fix", options.fix, "Parts of the strategy that are given: \"tp=8,pp=4\"");
  add_path(app, "--out", options.out, "Write the best plan to this file");
  add_not_built(app, "--report", true, "HTML report");
  add_path(app, "--trace", options.trace, "Write the simulated step as a Chrome trace");
  add_not_built(app, "--export", true, "Configuration for megatron, deepspeed or torchtitan");
  app.add_option("--stack", options.stack, "A software stack (default: foresail)");
  add_path(app, "--dump-program", options.dump_program, "Write the compiled Program, one file per stage");
  add_not_built(app, "--from-stress", true, "Verdict of a stress run to learn from");
  add_json(app, flags->json);
  add_example(app,
              "foresail plan --model llama-3-8b --machine dgx-a100-80gb --devices 64 --seq-len 8192 --out plan.json");
  return [flags] {
    const PlanResult result = make_plan(flags->options);
    std::cout << (flags->json ? plan_result_to_json(result) : plan_table(result));
    return result.feasible() ? Exit::done : Exit::answer_is_no;
  };
}

}  // namespace foresail
