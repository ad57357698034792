// foresail train plan.json --data DATA --out RUN
#include <charconv>
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/ranks.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "core/log.h"
#include "workflow/train.h"

namespace foresail {
namespace {

struct Flags {
  TrainOptions options;
  std::filesystem::path init;
  std::string resume, hosts;
  int64_t steps = 0;
  bool json = false;
};

/// "latest" (--resume alone), "step-N"; "healthy" belongs to a room that is not built.
void take_resume(const std::string& text, TrainOptions& options) {
  options.resume = true;
  if (text == "latest") return;
  int64_t step = 0;
  const std::string number = text.starts_with("step-") ? text.substr(5) : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), step);
  if (text == "healthy") {
    throw_bad_input("--resume=healthy", "this part of foresail is not built yet", "use --resume or --resume=step-N");
  }
  if (number.empty() || error != std::errc() || end != number.data() + number.size() || step < 0) {
    throw_bad_input("--resume", "'" + text + "' is no checkpoint", "use --resume or --resume=step-N");
  }
  options.resume_step = step;
}

std::string result_text(const TrainResult& result) {
  Table table({"", ""});
  table.add({"steps", grouped(result.steps)});
  table.add({"tokens", grouped(result.tokens)});
  table.add({"loss", fmt::format("{:.4f}", result.loss)});
  if (result.validation_loss) table.add({"validation loss", fmt::format("{:.4f}", *result.validation_loss)});
  if (result.step_seconds_median > 0) {  // otherwise no step was left to do
    table.add({"step time, median", fmt::format("{:.4g} s", result.step_seconds_median)});
    table.add({"throughput", fmt::format("{:.0f} tokens/s", result.tokens_per_second)});
    table.add({"model FLOPs utilisation", fmt::format("{:.1f} %", 100 * result.mfu)});
  }
  table.add({"arena per rank, largest", fmt::format("{} bytes", grouped(result.arena_bytes))});
  table.add({"checkpoint", result.checkpoint.empty() ? "none" : result.checkpoint});
  return table.text();
}

Exit run_train(const Flags& flags, Communicator& communicator) {
  const TrainResult result = train(flags.options, communicator);
  if (communicator.rank() == 0) std::cout << (flags.json ? train_result_to_json(result) : result_text(result));
  return result.stopped ? Exit::stopped : Exit::done;
}

}  // namespace

std::function<Exit()> add_train(CLI::App& app, const RankEnvironment& environment) {
  const auto flags = std::make_shared<Flags>();
  TrainOptions& options = flags->options;
  add_path(app, "PLAN", options.plan, "plan.json, as `foresail plan --out` writes it")->required();
  add_path(app, "--data", options.data, "Token dataset: prefix of .bin and .idx, or llm.c shards (default: the job's)");
  add_path(app, "--out", options.out, "Folder of the run")->required();
  add_path(app, "--init", flags->init, "Take the parameters from here: a step-N folder, or a Hugging Face folder");
  add_count(app, "--steps", flags->steps, "Stop after this step instead of the plan's last");
  app.add_flag("--resume{latest}", flags->resume, "Go on from the last checkpoint; --resume=step-N from that one");
  app.add_option("--hosts", flags->hosts, "An Open MPI hostfile")->type_name("FILE");
  app.add_option("--device", options.device, "cpu or reference (default: what the plan was made for)")
      ->check(CLI::IsMember({"cpu", "reference"}));
  add_not_built(app, "--max-usd", true, "Stop before this cost");
  add_not_built(app, "--until", true, "Stop before this date");
  add_not_built(app, "--without-stress", false, "Skip the stress run");
  add_json(app, flags->json);
  add_example(app, "foresail train plan.json --data bible --out run/");
  return [flags, environment] {
    TrainOptions& options = flags->options;
    if (!flags->init.empty()) options.init = flags->init;
    if (flags->steps > 0) options.steps = flags->steps;
    if (!flags->resume.empty()) take_resume(flags->resume, options);
    return run_ranks(
        environment,
        [&] {
          const RankCount count = check_train(options);
          return LaunchRequest{.ranks = count.ranks,
                               .threads_per_rank = count.threads,
                               .bytes_per_rank = count.bytes_per_rank,
                               .hostfile = flags->hosts,
                               .mend = "resume from the last checkpoint with --resume"};
        },
        [&](Communicator& communicator) { return run_train(*flags, communicator); });
  };
}

}  // namespace foresail
