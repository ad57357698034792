// foresail profile --out machine.json
#include <cstdio>
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/ranks.h"
#include "cli/verb.h"
#include "core/log.h"
#include "workflow/profile.h"

namespace foresail {
namespace {

constexpr double kGraceSeconds = 5;  // what was measured is saved piece by piece: nothing has to be finished

struct Flags {
  ProfileOptions options;
  std::string hosts, pass;
  bool json = false;
};

/// The hidden flag by which the launching process tells its ranks which pass they are: "RANKS:THREADS:SECONDS".
std::string pass_text(const ProfilePass& pass) {
  return fmt::format("{}:{}:{}", pass.ranks, pass.threads, pass.budget_seconds);
}

ProfilePass pass_from_text(const std::string& text) {
  ProfilePass pass;
  int length = 0;
  if (std::sscanf(text.c_str(), "%d:%d:%lf%n", &pass.ranks, &pass.threads, &pass.budget_seconds, &length) != 3 ||
      static_cast<size_t>(length) != text.size()) {
    throw_bad_input("--pass", "'" + text + "' is no pass", "leave the flag out: foresail uses it itself");
  }
  return pass;
}

Exit run_pass(const RankEnvironment& environment, const Flags& flags, const ProfilePass& pass) {
  return run_ranks(
      environment,
      [&] {
        LaunchRequest request{.ranks = pass.ranks,
                              .threads_per_rank = pass.threads,
                              .arguments = own_arguments(),
                              .hostfile = flags.hosts,
                              .grace_seconds = kGraceSeconds,
                              .mend = "run the same command again: it goes on where it stopped"};
        request.arguments.push_back("--pass=" + pass_text(pass));
        return request;
      },
      [&](Communicator& communicator) {
        profile_pass(flags.options, pass, communicator);
        return stop_requested() ? Exit::stopped : Exit::done;
      });
}

void say_how_to_go_on(const ProfileOptions& options) {
  const std::filesystem::path partial = partial_path(options);
  if (std::filesystem::exists(partial)) {
    log_warning("stopped: {} keeps what was measured; the same command goes on from there", partial.string());
  } else {
    log_warning("stopped before anything was measured; the same command begins anew");
  }
}

Exit run_profile(const RankEnvironment& environment, const Flags& flags) {
  if (environment.ranked) return run_pass(environment, flags, pass_from_text(flags.pass));
  for (const ProfilePass& pass : profile_passes(flags.options)) {
    log_info("measuring with {} ranks of {} threads", pass.ranks, pass.threads);
    const Exit exit = run_pass(environment, flags, pass);
    if (exit == Exit::stopped) say_how_to_go_on(flags.options);
    if (exit != Exit::done) return exit;
  }
  const ProfileResult result = finish_profile(flags.options);
  std::cout << (flags.json ? result.json
                           : fmt::format("{}: {} measurements in {:.0f} s\n", result.out, result.measurements,
                                         result.seconds));
  return Exit::done;
}

}  // namespace

std::function<Exit()> add_profile(CLI::App& app, const RankEnvironment& environment) {
  const auto flags = std::make_shared<Flags>();
  ProfileOptions& options = flags->options;
  app.set_help_flag();  // comes back behind the hidden flag: a hidden group at the end would print an empty line
  app.add_option("--pass", flags->pass)->group("");
  app.set_help_flag("-h,--help", "Print this help message and exit");
  add_path(app, "--out", options.out, "machine.json to write")->required();
  app.add_option("--base", options.base, "A machine over which the measurements are laid")->type_name("MACHINE");
  add_count(app, "--ranks", options.ranks, "The most ranks to measure with (default: one per core)");
  app.add_option("--hosts", flags->hosts, "An Open MPI hostfile")->type_name("FILE");
  app.add_option_function<std::string>(
         "--device",
         [](const std::string& device) {
           if (device == "cuda") {
             throw_bad_input("--device cuda", "this part of foresail is not built yet", "use --device cpu");
           }
         },
         "auto, cpu or cuda (default: auto)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--for", options.models, "Models whose shapes are measured; may be repeated")->type_name("MODEL");
  add_positive(app, "--budget", options.budget_seconds, "Seconds to spend (default: 60)");
  add_count(app, "--seq-len", options.sequence_length, "Tokens per sequence of the named models");
  add_json(app, flags->json);
  add_example(app, "foresail profile --out machine.json --for model/config.json --budget 60");
  return [flags, environment] { return run_profile(environment, *flags); };
}

}  // namespace foresail
