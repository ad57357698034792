// Scalars as TensorBoard reads them: an event file of length-prefixed, checksummed protobuf records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/io/posix_file.h"

namespace foresail {

/// CRC-32C (Castagnoli polynomial, reflected), as in iSCSI (RFC 3720, appendix B.4).
uint32_t crc32c(std::string_view bytes);

class TensorBoardWriter {
 public:
  /// Creates FOLDER/events.out.tfevents.SECONDS.HOST.PID.0 with its first record. Throws environment_failed.
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  /// One record with all scalars of a step; written at once.
  void append(int64_t step, std::span<const std::pair<std::string, double>> scalars);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write_record(const std::string& payload);
  PosixFile file_;
};

}  // namespace foresail
