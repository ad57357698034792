// The one place where return codes of MPI become errors.
#pragma once

namespace foresail {

/// Throws environment_failed naming `call` and MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace foresail
