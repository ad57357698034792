#include "runtime/data/dataset.h"

#include <algorithm>
#include <bit>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

constexpr int64_t kTokensPerRead = int64_t{1} << 16;

// Largest id, reading everything in pieces.
int64_t largest_id(const IndexedDataset& data) {
  std::vector<int32_t> buffer;
  int32_t largest = 0;
  for (int64_t first = 0; first < data.tokens(); first += kTokensPerRead) {
    buffer.resize(static_cast<size_t>(std::min(kTokensPerRead, data.tokens() - first)));
    data.read(first, buffer);
    largest = std::max(largest, *std::max_element(buffer.begin(), buffer.end()));
  }
  return largest;
}

std::vector<LengthBin> histogram_of(const IndexedDataset& data) {
  LengthHistogram histogram;
  int64_t begin = 0;
  for (int64_t d = 1; d <= data.documents(); ++d) {
    const int64_t end = data.document_begin(d);
    histogram.add(end - begin);
    begin = end;
  }
  return histogram.bins();
}

// How the description differs from the files; empty if it does not.
std::string disagreement(const DatasetInfo& info, const IndexedDataset& data) {
  const auto differs = [](const char* field, int64_t stated, int64_t found) {
    return std::string(field) + " is " + std::to_string(stated) + ", the files have " + std::to_string(found);
  };
  if (info.tokens != data.tokens()) return differs("tokens", info.tokens, data.tokens());
  if (info.documents != data.documents()) return differs("documents", info.documents, data.documents());
  if (info.bin_bytes != std::ssize(data.bin_bytes()))
    return differs("bin_bytes", info.bin_bytes, std::ssize(data.bin_bytes()));
  if (info.idx_bytes != std::ssize(data.idx_bytes()))
    return differs("idx_bytes", info.idx_bytes, std::ssize(data.idx_bytes()));
  if (info.token_type != name_of(data.type())) {
    return "token_type is " + info.token_type + ", the files have " + std::string(name_of(data.type()));
  }
  return "";
}

std::optional<DatasetInfo> read_dataset_info(const std::filesystem::path& prefix) {
  const std::filesystem::path path = dataset_info_path(prefix);
  if (!std::filesystem::exists(path)) return std::nullopt;
  constexpr int64_t kLimitBytes = int64_t{1} << 20;
  return dataset_info_from_json(read_file(path, kLimitBytes), path.string());
}

// Adds what `check` finds, or the error it throws, to the problems.
template <typename Check>
void collect(std::vector<std::string>& problems, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
}

void verify_against_info(const IndexedDataset& data, const DatasetInfo& info, std::vector<std::string>& problems) {
  const std::string source = dataset_info_path(data.prefix()).string();
  if (const std::string difference = disagreement(info, data); !difference.empty())
    problems.push_back(source + ": " + difference);
  if (digest_of(data.bin_bytes()) != info.bin_digest) {
    problems.push_back(bin_path(data.prefix()).string() + ": its digest differs from the one in " + source);
  }
  if (digest_of(data.idx_bytes()) != info.idx_digest) {
    problems.push_back(idx_path(data.prefix()).string() + ": its digest differs from the one in " + source);
  }
}

}  // namespace

void LengthHistogram::add(int64_t tokens) {
  const int bin = std::bit_width(static_cast<uint64_t>(tokens));
  ++documents_[bin];
  tokens_[bin] += tokens;
}

std::vector<LengthBin> LengthHistogram::bins() const {
  std::vector<LengthBin> result;
  for (int bin = 0; bin < 63; ++bin) {
    if (documents_[bin] == 0) continue;
    const int64_t least = bin == 0 ? 0 : int64_t{1} << (bin - 1);
    result.push_back({least, bin == 0 ? 0 : 2 * least - 1, documents_[bin], tokens_[bin]});
  }
  return result;
}

std::filesystem::path dataset_info_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".dataset.json";
}

std::optional<DatasetInfo> load_dataset_info(const IndexedDataset& data) {
  auto info = read_dataset_info(data.prefix());
  if (!info) return std::nullopt;
  const std::string difference = disagreement(*info, data);
  if (!difference.empty()) {
    throw_bad_input(dataset_info_path(data.prefix()).string(), difference,
                    "prepare the dataset again, or remove this file");
  }
  return info;
}

DatasetSummary inspect_dataset(const std::filesystem::path& prefix) {
  const IndexedDataset data(prefix);
  DatasetSummary summary;
  summary.prefix = prefix.string();
  summary.token_type = name_of(data.type());
  summary.tokens = data.tokens();
  summary.documents = data.documents();
  summary.sequences = data.sequences();
  summary.bin_bytes = std::ssize(data.bin_bytes());
  summary.document_lengths = histogram_of(data);
  summary.info = load_dataset_info(data);
  return summary;
}

DatasetVerdict verify_dataset(const std::filesystem::path& prefix) {
  for (const auto& path : {bin_path(prefix), idx_path(prefix)}) PosixFile::open_to_read(path);  // missing: not damage
  DatasetVerdict verdict;
  std::optional<DatasetInfo> info;
  collect(verdict.problems, [&] { info = read_dataset_info(prefix); });
  collect(verdict.problems, [&] {
    const IndexedDataset data(prefix);
    if (info) verify_against_info(data, *info, verdict.problems);
    verdict.maximum_id = largest_id(data);
    verdict.tokens = data.tokens();
  });
  if (info && verdict.tokens > 0 && verdict.maximum_id >= info->vocabulary) {
    verdict.problems.push_back(bin_path(prefix).string() + ": holds id " + std::to_string(verdict.maximum_id) +
                               ", the vocabulary has " + std::to_string(info->vocabulary));
  }
  return verdict;
}

void check_vocabulary(const IndexedDataset& data, int64_t model_vocabulary) {
  const auto info = load_dataset_info(data);
  const int64_t largest = info ? info->maximum_id : largest_id(data);
  if (largest < model_vocabulary) return;
  throw_bad_input(
      data.prefix().string(),
      "holds token id " + std::to_string(largest) + ", the model's vocabulary has " + std::to_string(model_vocabulary),
      "prepare it with the model's tokenizer, or use a model with a larger vocab_size");
}

std::string dataset_identity(const IndexedDataset& data) {
  constexpr int64_t kPieceBytes = 4096, kPieces = 1024;
  const std::span<const std::byte> bin = data.bin_bytes();
  const int64_t bytes = std::ssize(bin);
  Digest digest;
  digest.update(data.idx_bytes());
  digest.update(std::as_bytes(std::span(&bytes, 1)));
  if (bytes <= kPieceBytes * kPieces) {
    digest.update(bin);
    return digest.hex();
  }
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    // 128 bits: the product of a large file's size and the piece's number may pass 2^63.
    const auto begin = static_cast<int64_t>(static_cast<__int128>(bytes - kPieceBytes) * piece / (kPieces - 1));
    digest.update(bin.subspan(static_cast<size_t>(begin), kPieceBytes));
  }
  return digest.hex();
}

}  // namespace foresail
