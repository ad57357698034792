// foresail stress plan.json --data DATA
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/ranks.h"
#include "cli/verb.h"
#include "workflow/stress.h"

namespace foresail {
namespace {

struct Flags {
  StressOptions options;
  std::string hosts;
  bool json = false, no_drills = false;
};

Exit run_stress(const Flags& flags, Communicator& communicator) {
  const StressResult result = stress(flags.options, communicator);
  if (communicator.rank() == 0) std::cout << (flags.json ? stress_result_to_json(result) : stress_table(result));
  return result.passed() ? Exit::done : Exit::answer_is_no;
}

}  // namespace

std::function<Exit()> add_stress(CLI::App& app, const RankEnvironment& environment) {
  const auto flags = std::make_shared<Flags>();
  StressOptions& options = flags->options;
  add_path(app, "PLAN", options.plan, "plan.json, as `foresail plan --out` writes it")->required();
  add_path(app, "--data", options.data, "Token dataset: prefix of .bin and .idx, or llm.c shards (default: the job's)");
  add_not_built(app, "--devices", true, "A shrunk plan on fewer devices");
  add_positive(app, "--minutes", options.minutes, "How long (default: 1.5)");
  app.add_option("--hosts", flags->hosts, "An Open MPI hostfile")->type_name("FILE");
  app.add_flag("--no-drills", flags->no_drills, "Skip the checkpoint drill");
  add_path(app, "--out", options.out, "Folder for the verdict and the drill's checkpoint");
  app.add_option("--device", options.device, "cpu or reference (default: what the plan was made for)")
      ->check(CLI::IsMember({"cpu", "reference"}));
  add_json(app, flags->json);
  add_example(app, "foresail stress plan.json --data bible --minutes 1.5");
  return [flags, environment] {
    flags->options.drills = !flags->no_drills;
    return run_ranks(
        environment,
        [&] {
          const RankCount count = check_stress(flags->options);
          return LaunchRequest{.ranks = count.ranks,
                               .threads_per_rank = count.threads,
                               .bytes_per_rank = count.bytes_per_rank,
                               .hostfile = flags->hosts,
                               .mend = "run the same command again"};
        },
        [&](Communicator& communicator) { return run_stress(*flags, communicator); });
  };
}

}  // namespace foresail
