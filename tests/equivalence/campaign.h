// Judges many experiments in one resident mpirun: small meshes share the world, each on ranks of its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/equivalence/harness.h"

namespace foresail::testing {

/// One experiment, judged against one rank.
struct Task {
  std::string name;
  Experiment experiment;
  Fault fault;
  bool repeat = false;          ///< runs it twice: the same bits
  bool against_itself = false;  ///< compares with the same experiment without the fault instead: the same bits
  bool overflows = false;       ///< compares with the same experiment with room for all rows of experts: the same bits
  bool both_modes = false;      ///< runs it with serialised queues too: the same bits
};

/// What was found wrong with a task, empty if it trains the same model as one rank does.
using Findings = std::vector<std::string>;

/// All ranks of `world` call it with the same tasks; every rank gets the findings of all of them, in order.
std::vector<Findings> judge_all(std::span<const Task> tasks, Communicator& world);

}  // namespace foresail::testing
