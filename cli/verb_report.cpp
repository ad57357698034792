// foresail report RUN
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/verb.h"
#include "workflow/report.h"

namespace foresail {

std::function<Exit()> add_report(CLI::App& app, const RankEnvironment&) {
  struct Flags {
    std::filesystem::path run;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  add_path(app, "RUN", flags->run, "A run folder of `foresail train`")->required();
  add_not_built(app, "--out", true, "HTML report");
  add_json(app, flags->json);
  add_example(app, "foresail report run/");
  return [flags] {
    const ReportResult result = report(flags->run);
    std::cout << (flags->json ? report_to_json(result) : report_table(result));
    return result.passed() ? Exit::done : Exit::answer_is_no;
  };
}

}  // namespace foresail
