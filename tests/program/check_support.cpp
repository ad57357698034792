#include "tests/program/check_support.h"

#include <algorithm>
#include <stdexcept>

namespace foresail::testing {

Block& block_named(Program& program, const std::string& name) {
  for (Block& block : program.blocks) {
    if (block.name == name) return block;
  }
  throw std::runtime_error("no block " + name);
}

bool mentions(const std::vector<std::string>& problems, const std::string& text) {
  return std::any_of(problems.begin(), problems.end(),
                     [&](const std::string& problem) { return problem.find(text) != std::string::npos; });
}

std::vector<Program> stages_of(const std::string& strategy) {
  return train_programs(small_llama(), small_job(), strategy);
}

std::vector<std::string> problems_of(const std::vector<Program>& stages) {
  std::vector<std::string> problems = check_pipeline(stages);
  for (const Program& stage : stages) {
    for (std::string& problem : check_program(stage)) problems.push_back(std::move(problem));
  }
  return problems;
}

}  // namespace foresail::testing
