// The `foresail` binary: verbs, and the one place where errors become a line and an exit code.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <new>
#include <optional>

#include "cli/verb.h"
#include "core/error.h"
#include "core/log.h"
#include "core/version.h"
#include "runtime/launch/rank.h"

namespace foresail {

const std::vector<Verb>& all_verbs() {
  static const std::vector<Verb> verbs = {
      {"model", "Parameters, FLOPs per token and a per-layer table", add_model},
      {"profile", "Measure what kernels, collectives, disks and data cost on this machine", add_profile},
      {"plan", "Search every parallel strategy; predict time, memory and cost", add_plan},
      {"simulate", "Predict one strategy, or a dumped Program", add_simulate},
      {"validate", "Predictions against published or own measurements", add_validate},
      {"calibrate", "Fit a software stack's constants to own runs", add_calibrate},
      {"stress", "Run a plan for minutes: does reality match the prediction?", add_stress},
      {"train", "Run a plan to the end", add_train},
      {"sample", "Text from a trained model", add_sample},
      {"data", "Prepare, inspect and verify token datasets", add_data},
      {"checkpoint", "List, verify, compare, export and import checkpoints", add_checkpoint},
      {"doctor", "Is this machine fit to train?", add_doctor},
      {"launch", "Job files for a cluster's own scheduler", add_launch},
      {"report", "Where the time, memory and money went", add_report},
  };
  return verbs;
}

namespace {

const std::map<std::string, LogLevel> kLogLevels = {
    {"debug", LogLevel::debug}, {"info", LogLevel::info}, {"warning", LogLevel::warning}, {"error", LogLevel::error}};

/// The app that the user was talking to when parsing ended: the innermost subcommand that was named.
const CLI::App& innermost(const CLI::App& app) {
  const auto named = app.get_subcommands();
  return named.empty() ? app : innermost(*named.front());
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() ? full_name(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

/// CLI11's complaint as one line of ours.
[[noreturn]] void throw_usage(const CLI::App& root, const CLI::ParseError& complaint) {
  const std::string name = full_name(innermost(root));
  std::string cause = complaint.what();
  std::replace(cause.begin(), cause.end(), '\n', ' ');
  throw_bad_input(name, cause, "`" + name + " --help` shows what it takes");
}

Exit run(int argc, char** argv, const RankEnvironment& environment) {
  CLI::App app("Foresail plans a large-model training run, proves the plan on a short stress run, and executes it.",
               "foresail");
  app.set_version_flag("--version", "foresail " + version_text());
  app.get_formatter()->column_width(34);
  std::string level = "info";
  app.add_option("--log-level", level, "Least level of messages on standard error: debug, info, warning, error")
      ->check(CLI::IsMember(kLogLevels).description(""))
      ->type_name("LEVEL");
  std::vector<std::pair<CLI::App*, std::function<Exit()>>> actions;
  for (const Verb& verb : all_verbs()) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary);
    actions.emplace_back(sub, verb.add(*sub, environment));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help and --version
    app.exit(request);
    return Exit::done;
  } catch (const CLI::ParseError& complaint) {
    throw_usage(app, complaint);
  }
  configure_log(kLogLevels.at(level), environment.rank > 0 ? "rank " + std::to_string(environment.rank) : "");
  for (const auto& [sub, action] : actions) {
    if (sub->parsed()) return action();
  }
  throw_bad_input("foresail", "a verb is required", "`foresail --help` lists them");
}

/// A result that did not arrive is no result: a full disk behind a redirection must not look like success.
Exit delivered(Exit exit) {
  std::cout.flush();
  if (!std::cout) {
    throw_environment("standard output", "the result could not be written: its disk is full or it was closed",
                      "redirect it to a place with space");
  }
  return exit;
}

Exit say(const Error& error) {
  std::string line = error.what();
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  std::cerr << "error: " << line << std::endl;
  return error.exit();
}

}  // namespace
}  // namespace foresail

int main(int argc, char** argv) {
  using namespace foresail;
  try {
    const RankEnvironment environment = detect_rank_environment();
    if (environment.ranked) {
      return static_cast<int>(run_rank_main(environment, [&] { return delivered(run(argc, argv, environment)); }));
    }
    return static_cast<int>(delivered(run(argc, argv, environment)));
  } catch (const Error& error) {
    return static_cast<int>(say(error));
  } catch (const std::bad_alloc&) {
    return static_cast<int>(
        say(Error(Exit::environment_failed, "memory", "this machine has none left", "close other programs")));
  } catch (const std::filesystem::filesystem_error& error) {  // a path that cannot even be looked at
    return static_cast<int>(say(
        Error(Exit::bad_input, error.path1().string(), error.code().message(), "check the path and its permissions")));
  } catch (const std::exception& error) {
    return static_cast<int>(say(Error(Exit::environment_failed, "foresail", error.what(),
                                      "this is a defect of foresail: please report it with the command line")));
  }
}
