// MPI's C interface alone: the C++ bindings of mpi.h were removed from the standard and would have to be linked.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
