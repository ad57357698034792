// foresail validate RUNS.csv
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/verb.h"
#include "workflow/validate.h"

namespace foresail {

std::function<Exit()> add_validate(CLI::App& app, const RankEnvironment&) {
  struct Flags {
    ValidateOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  add_path(app, "RUNS", flags->options.runs,
           "CSV of measured runs; examples/measured_runs.csv shows the columns, docs/planning.md explains them")
      ->required();
  app.add_option("--machine", flags->options.machine, "A catalogue name or a machine.json (default: by each row)");
  app.add_option("--stack", flags->options.stack, "A software stack (default: by each row, else foresail)");
  add_json(app, flags->json);
  add_example(app, "foresail validate examples/measured_runs.csv");
  return [flags] {
    const ValidateResult result = validate(flags->options);
    std::cout << (flags->json ? validate_result_to_json(result) : validate_table(result));
    return result.usable() ? Exit::done : Exit::answer_is_no;
  };
}

}  // namespace foresail
