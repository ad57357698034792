// Compiled Programs that tests of the static check break on purpose.
#pragma once

#include <string>
#include <vector>

#include "program/check.h"
#include "tests/program/small_models.h"

namespace foresail::testing {

Block& block_named(Program& program, const std::string& name);
bool mentions(const std::vector<std::string>& problems, const std::string& text);
/// Programs of every stage of a small llama of 4 layers, global batch 8.
std::vector<Program> stages_of(const std::string& strategy);
/// What check_program finds in all stages, and check_pipeline.
std::vector<std::string> problems_of(const std::vector<Program>& stages);

}  // namespace foresail::testing
