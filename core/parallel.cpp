#include "core/parallel.h"

#include <omp.h>

namespace foresail {

void set_thread_count(int threads) { omp_set_num_threads(std::max(1, threads)); }

int thread_count() { return omp_get_max_threads(); }

}  // namespace foresail
