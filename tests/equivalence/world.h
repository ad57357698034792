// The communicator of all ranks that mpirun started.
#pragma once

#include "comm/communicator.h"

namespace foresail::testing {

Communicator& world();

}  // namespace foresail::testing
