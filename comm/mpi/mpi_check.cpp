#include "comm/mpi/mpi_check.h"

#include <string>

#include "comm/mpi/mpi_c.h"
#include "core/error.h"

namespace foresail {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw_environment(std::string("MPI call ") + call, text,
                    "check that all hosts run and reach each other, then resume from the last checkpoint");
}

}  // namespace foresail
