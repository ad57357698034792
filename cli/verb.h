// What a verb of the command line is. Each verb_*.cpp declares its flags and hands them to one function of another
// room.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <vector>

#include "core/error.h"
#include "runtime/launch/rank.h"

namespace foresail {

struct Verb {
  const char* name;
  const char* summary;
  /// Declares the flags on `app` and returns what runs once they are parsed.
  std::function<Exit()> (*add)(CLI::App& app, const RankEnvironment& environment);
};

/// In the order of the help text.
const std::vector<Verb>& all_verbs();

std::function<Exit()> add_model(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_profile(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_plan(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_simulate(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_validate(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_stress(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_train(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_sample(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_data(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_checkpoint(CLI::App& app, const RankEnvironment& environment);
// Verbs of the contract that are not built yet: they say so.
std::function<Exit()> add_calibrate(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_doctor(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_launch(CLI::App& app, const RankEnvironment& environment);
std::function<Exit()> add_report(CLI::App& app, const RankEnvironment& environment);

}  // namespace foresail
