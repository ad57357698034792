// Verbs of the contract whose rooms do not exist yet.
#include "cli/flags.h"
#include "cli/verb.h"

namespace foresail {
namespace {

std::function<Exit()> add_unbuilt(CLI::App& app, const std::string& example) {
  app.description(app.get_description() + " (not built yet)");
  add_example(app, example);
  app.allow_extras();
  const std::string name = "foresail " + app.get_name();
  return [name]() -> Exit { throw_bad_input(name, "it is not built yet", "`foresail --help` lists what is"); };
}

}  // namespace

std::function<Exit()> add_calibrate(CLI::App& app, const RankEnvironment&) {
  return add_unbuilt(app, "foresail calibrate runs.csv --out stack.json");
}
std::function<Exit()> add_doctor(CLI::App& app, const RankEnvironment&) {
  return add_unbuilt(app, "foresail doctor --tier 30s");
}
std::function<Exit()> add_launch(CLI::App& app, const RankEnvironment&) {
  return add_unbuilt(app, "foresail launch plan.json --slurm");
}

}  // namespace foresail
