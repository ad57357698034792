// How much memory this process really has: what the kernel says, against what was predicted.
#pragma once

#include <cstdint>

namespace foresail {

/// Proportional set size: pages shared by n processes count 1/n each (MPI windows, libraries). Pages of mapped token
/// datasets (*.bin, *.idx) are not counted: they are cache that the kernel may take back. From /proc/self/smaps; throws
/// environment_failed if that cannot be read.
int64_t resident_bytes();

/// MemAvailable of /proc/meminfo: what can be had without swapping; the largest number if it is not told.
int64_t available_memory_bytes();

}  // namespace foresail
