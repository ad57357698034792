// What the disk and the data reader give.
#pragma once

#include <cstdint>
#include <filesystem>

namespace foresail {

struct DiskRates {
  double write_bytes_per_second = 0;  ///< including fsync
  double read_bytes_per_second = 0;   ///< after the page cache was asked to forget the file
};

/// Writes and reads a temporary file in `folder` (removed again), in pieces of 4 MiB, for about `seconds`. Throws
/// environment_failed if the disk refuses.
DiskRates measure_disk(const std::filesystem::path& folder, double seconds);

/// Tokens per second that one process reads through a SampleSource of a temporary byte dataset in `folder`.
double measure_data_reading(const std::filesystem::path& folder, int64_t sequence_length, double seconds);

}  // namespace foresail
