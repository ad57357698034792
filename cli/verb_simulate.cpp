// foresail simulate
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/verb.h"
#include "workflow/simulate.h"

namespace foresail {

std::function<Exit()> add_simulate(CLI::App& app, const RankEnvironment&) {
  struct Flags {
    SimulateOptions options;
    std::vector<std::string> programs;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  SimulateOptions& options = flags->options;
  CLI::Option* model = app.add_option("--model", options.model, "A catalogue name or a path to a config.json");
  app.add_option("--machine", options.machine, "A catalogue name (dgx-a100-80gb, ...) or a machine.json")->required();
  add_count(app, "--devices", options.devices, "Devices (default: what the strategy needs, dp=1 if it names no dp)");
  add_count(app, "--seq-len", options.sequence_length, "Tokens per sequence");
  add_count(app, "--global-batch", options.global_batch, "Sequences per step");
  app.add_option("--strategy", options.strategy,
                 "\"tp=8,pp=16,micro_batch=1,recompute=full\"; a dp left out follows from --devices");
  add_path(app, "--job", options.job, "job.json; flags override its fields");
  app.add_option("--program", flags->programs, "Dumped Programs, one per stage in order, in place of a model")
      ->excludes(model);
  app.add_option("--stack", options.stack, "A software stack (default: foresail)");
  add_path(app, "--trace", options.trace, "Write the simulated step as a Chrome trace");
  add_json(app, flags->json);
  add_example(app,
              "foresail simulate --model gpt-3-175b --machine dgx-a100-80gb --devices 1536 --seq-len 2048 \\\n"
              "      --global-batch 1536 --strategy \"tp=8,pp=16,micro_batch=1,recompute=full\"");
  return [flags] {
    flags->options.programs.assign(flags->programs.begin(), flags->programs.end());
    if (flags->options.model.empty() && flags->programs.empty() && flags->options.job.empty()) {
      throw_bad_input("foresail simulate", "neither a model nor a dumped Program is given",
                      "give --model, --job or --program");
    }
    const SimulateResult result = simulate_strategy(flags->options);
    std::cout << (flags->json ? simulate_result_to_json(result) : simulate_table(result));
    return result.fits ? Exit::done : Exit::answer_is_no;
  };
}

}  // namespace foresail
