#include "profiler/storage.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "profiler/team.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/sample_source.h"

namespace foresail {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;  // as a checkpoint writes
constexpr int64_t kMostBytes = int64_t{256} << 20;
constexpr int64_t kDatasetTokens = int64_t{4} << 20;
constexpr int64_t kDocumentTokens = 2048;

/// A file that is closed and removed when it goes out of scope.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor_ < 0) fail();
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) close(descriptor_);
    unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  int descriptor() const { return descriptor_; }
  [[noreturn]] void fail() const {
    throw_environment(path_.string(), std::strerror(errno), "profile into a folder with 256 MB of free space");
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

int64_t write_pieces(const TemporaryFile& file, std::span<const std::byte> piece, double seconds) {
  const auto begin = ProfileClock::now();
  int64_t written = 0;
  while (written < kMostBytes && (written == 0 || seconds_between(begin, ProfileClock::now()) < seconds)) {
    const ssize_t got = write(file.descriptor(), piece.data(), piece.size());
    if (got <= 0) file.fail();
    written += got;
  }
  if (fsync(file.descriptor()) != 0) file.fail();
  return written;
}

int64_t read_pieces(const TemporaryFile& file, std::span<std::byte> piece) {
  int64_t total = 0;
  for (ssize_t got = 0; (got = pread(file.descriptor(), piece.data(), piece.size(), total)) > 0;) total += got;
  return total;
}

}  // namespace

DiskRates measure_disk(const std::filesystem::path& folder, double seconds) {
  TemporaryFile file(folder / ("foresail-disk-" + std::to_string(getpid())));
  std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
  for (size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  DiskRates rates;
  auto begin = ProfileClock::now();
  const int64_t written = write_pieces(file, piece, seconds / 2);
  rates.write_bytes_per_second = static_cast<double>(written) / seconds_between(begin, ProfileClock::now());
  posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  begin = ProfileClock::now();
  const int64_t read = read_pieces(file, piece);
  rates.read_bytes_per_second = static_cast<double>(read) / seconds_between(begin, ProfileClock::now());
  return rates;
}

double measure_data_reading(const std::filesystem::path& folder, int64_t sequence_length, double seconds) {
  const std::filesystem::path place = folder / ("foresail-data-" + std::to_string(getpid()));
  create_folder(place);
  const std::filesystem::path prefix = place / "tokens";
  double rate = 0;
  try {
    IndexedDatasetWriter writer(prefix, TokenType::u16);
    std::vector<int32_t> document(static_cast<size_t>(kDocumentTokens));
    for (size_t i = 0; i < document.size(); ++i) document[i] = static_cast<int32_t>(i % 256);
    for (int64_t t = 0; t < kDatasetTokens; t += kDocumentTokens) {
      writer.append(document);
      writer.end_document();
    }
    writer.finish();
    std::filesystem::rename(bin_path(prefix).string() + ".tmp", bin_path(prefix));
    std::filesystem::rename(idx_path(prefix).string() + ".tmp", idx_path(prefix));
    const IndexedDataset data(prefix);
    const SampleSource source(
        data, {.sequence_length = sequence_length, .validation_fraction = 0, .seed = 1, .vocabulary = 256},
        DataPart::training);
    rate = measure_data_rate(source, 0, seconds).tokens_per_second;
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(place, ignored);
    throw;
  }
  std::filesystem::remove_all(place);
  return rate;
}

}  // namespace foresail
