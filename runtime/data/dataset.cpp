#include "runtime/data/dataset.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

constexpr int64_t kTokensPerRead = int64_t{1} << 16;

// Largest id among `pieces` pieces of kTokensPerRead tokens, spread evenly; all tokens if that many pieces hold them.
int64_t largest_id(const TokenDataset& data, int64_t pieces) {
  std::vector<int32_t> buffer;
  int32_t largest = 0;
  const int64_t all = (data.tokens() + kTokensPerRead - 1) / kTokensPerRead;
  const int64_t read = std::min(all, pieces);
  for (int64_t piece = 0; piece < read; ++piece) {
    // 128 bits: the product may pass 2^63.
    const auto first = static_cast<int64_t>(static_cast<__int128>(all) * piece / read) * kTokensPerRead;
    buffer.resize(static_cast<size_t>(std::min(kTokensPerRead, data.tokens() - first)));
    data.read(first, buffer);
    largest = std::max(largest, *std::max_element(buffer.begin(), buffer.end()));
  }
  return largest;
}

int64_t largest_id(const TokenDataset& data) { return largest_id(data, std::numeric_limits<int64_t>::max()); }

std::vector<LengthBin> histogram_of(const TokenDataset& data) {
  LengthHistogram histogram;
  data.each_document([&](int64_t tokens) { histogram.add(tokens); });
  return histogram.bins();
}

int64_t documents_in(const std::vector<LengthBin>& bins) {
  int64_t documents = 0;
  for (const LengthBin& bin : bins) documents += bin.documents;
  return documents;
}

int64_t token_bytes(const TokenDataset& data) {
  int64_t bytes = 0;
  for (const auto& file : data.token_files()) bytes += std::ssize(file);
  return bytes;
}

int64_t counted_tokens(const TokenDataset& data) {
  return data.mask() == nullptr ? data.tokens() : data.mask()->counted(0, data.tokens());
}

std::string disagreement_about_mask(const DatasetInfo& info, const TokenDataset& data) {
  if (info.mask && data.mask() == nullptr)
    return "it describes a loss mask, " + mask_path(data.prefix()).string() + " is missing";
  if (!info.mask && data.mask() != nullptr)
    return "it describes no loss mask, " + mask_path(data.prefix()).string() + " is there";
  if (info.mask && info.mask->bytes != std::ssize(data.mask()->bytes())) {
    return "mask.bytes is " + std::to_string(info.mask->bytes) + ", the file has " +
           std::to_string(data.mask()->bytes().size());
  }
  return "";
}

// How the description differs from the files; empty if it does not.
std::string disagreement(const DatasetInfo& info, const TokenDataset& data) {
  const auto differs = [](const char* field, int64_t stated, int64_t found) {
    return std::string(field) + " is " + std::to_string(stated) + ", the files have " + std::to_string(found);
  };
  if (info.tokens != data.tokens()) return differs("tokens", info.tokens, data.tokens());
  if (const int64_t documents = data.counts().documents.value_or(0); info.documents != documents)
    return differs("documents", info.documents, documents);
  if (info.bin_bytes != token_bytes(data)) return differs("bin_bytes", info.bin_bytes, token_bytes(data));
  if (info.idx_bytes != std::ssize(data.index())) return differs("idx_bytes", info.idx_bytes, std::ssize(data.index()));
  if (info.token_type != name_of(data.type())) {
    return "token_type is " + info.token_type + ", the files have " + std::string(name_of(data.type()));
  }
  return disagreement_about_mask(info, data);
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

void verify_mask_against_info(const TokenDataset& data, const MaskInfo& stated, std::vector<std::string>& problems) {
  const std::string mask = mask_path(data.prefix()).string(), source = dataset_info_path(data.prefix()).string();
  if (digest_of(data.mask()->bytes()) != stated.digest) {
    problems.push_back(mask + ": its digest differs from the one in " + source);
  }
  if (const int64_t counted = counted_tokens(data); counted != stated.counted_tokens) {
    problems.push_back(mask + ": lets " + std::to_string(counted) + " tokens count, " + source + " says " +
                       std::to_string(stated.counted_tokens));
  }
}

void verify_against_info(const TokenDataset& data, const DatasetInfo& info, std::vector<std::string>& problems) {
  const std::string source = dataset_info_path(data.prefix()).string();
  if (const std::string difference = disagreement(info, data); !difference.empty())
    problems.push_back(source + ": " + difference);
  if (digest_of(data.token_files().front()) != info.bin_digest) {
    problems.push_back(bin_path(data.prefix()).string() + ": its digest differs from the one in " + source);
  }
  if (digest_of(data.index()) != info.idx_digest) {
    problems.push_back(idx_path(data.prefix()).string() + ": its digest differs from the one in " + source);
  }
  if (histogram_of(data) != info.document_lengths) {
    problems.push_back(source + ": its document_lengths are not those of the documents");
  }
  if (info.mask && data.mask() != nullptr) verify_mask_against_info(data, *info.mask, problems);
  if (!info.tokenizer_digest.empty()) {
    const std::string path = tokenizer_path(data.prefix()).string();
    collect(problems, [&] {
      if (digest_of(read_file(path)) == info.tokenizer_digest) return;
      problems.push_back(path + ": its digest differs from the one in " + source);
    });
  }
}

void verify_vocabulary(const TokenDataset& data, const std::optional<DatasetInfo>& info, DatasetVerdict& verdict) {
  const int64_t vocabulary = info ? info->vocabulary : data.origin().vocabulary;
  if (vocabulary == 0 || verdict.maximum_id < vocabulary) return;
  const std::string file = info ? bin_path(data.prefix()).string() : data.prefix().string();
  verdict.problems.push_back(file + ": holds id " + std::to_string(verdict.maximum_id) + ", the vocabulary has " +
                             std::to_string(vocabulary));
}

/// The size of a file and up to `pieces` pieces of it, spread evenly; all of it if it is not larger.
void add_to_identity(Digest& digest, std::span<const std::byte> file, int64_t pieces) {
  constexpr int64_t kPieceBytes = 4096;
  const int64_t bytes = std::ssize(file);
  digest.update(std::as_bytes(std::span(&bytes, 1)));
  if (bytes <= kPieceBytes * pieces) return digest.update(file);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    // 128 bits: the product of a large file's size and the piece's number may pass 2^63.
    const auto begin = static_cast<int64_t>(static_cast<__int128>(bytes - kPieceBytes) * piece / (pieces - 1));
    digest.update(file.subspan(static_cast<size_t>(begin), kPieceBytes));
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

std::filesystem::path tokenizer_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".tokenizer.json";
}

std::optional<DatasetInfo> load_dataset_info(const TokenDataset& data) {
  if (data.index().empty()) return std::nullopt;  // not in the form that a description belongs to
  auto info = read_dataset_info(data.prefix());
  if (!info) return std::nullopt;
  const std::string difference = disagreement(*info, data);
  if (!difference.empty()) {
    throw_bad_input(dataset_info_path(data.prefix()).string(), difference,
                    "prepare the dataset again, or remove this file");
  }
  return info;
}

DatasetSummary inspect_dataset(const std::filesystem::path& path, bool lengths) {
  const auto data = open_dataset(path);
  DatasetSummary summary;
  summary.prefix = data->prefix().string();
  summary.token_type = name_of(data->type());
  summary.origin = data->origin();
  summary.counts = data->counts();
  summary.tokens = data->tokens();
  summary.bin_bytes = token_bytes(*data);
  summary.own_validation_begin = data->own_validation_begin();
  summary.info = load_dataset_info(*data);
  const bool stated = summary.info && summary.info->mask;
  summary.counted_tokens = stated ? summary.info->mask->counted_tokens : counted_tokens(*data);
  if (lengths) {
    summary.document_lengths = histogram_of(*data);
    summary.counts.documents = documents_in(*summary.document_lengths);
  } else if (summary.info) {
    summary.document_lengths = summary.info->document_lengths;
  }
  return summary;
}

DatasetVerdict verify_dataset(const std::filesystem::path& path) {
  const DatasetPlace place = locate_dataset(path);
  DatasetVerdict verdict;
  std::optional<DatasetInfo> info;
  if (place.indexed) {
    for (const auto& file : {bin_path(*place.indexed), idx_path(*place.indexed)})
      PosixFile::open_to_read(file);  // missing: not damage
    collect(verdict.problems, [&] { info = read_dataset_info(*place.indexed); });
  }
  collect(verdict.problems, [&] {
    const auto data = open_dataset(place);
    if (info) verify_against_info(*data, *info, verdict.problems);
    verdict.maximum_id = largest_id(*data);
    verdict.tokens = data->tokens();
    verify_vocabulary(*data, info, verdict);
  });
  return verdict;
}

void check_vocabulary(const TokenDataset& data, int64_t model_vocabulary) {
  constexpr int64_t kPieces = 1024;
  const auto refuse = [&](const std::string& cause) {
    throw_bad_input(data.prefix().string(), cause + ", the model's vocabulary has " + std::to_string(model_vocabulary),
                    "prepare it with the model's tokenizer, or use a model with a larger vocab_size");
  };
  const auto info = load_dataset_info(data);
  if (const TokenOrigin origin = data.origin(); !info && origin.vocabulary > 0) {
    if (origin.vocabulary > model_vocabulary) {
      refuse("holds tokens of " + origin.tokenizer + ", a vocabulary of " + std::to_string(origin.vocabulary));
    }
    return;
  }
  const int64_t largest = info ? info->maximum_id : largest_id(data, kPieces);
  if (largest >= model_vocabulary) refuse("holds token id " + std::to_string(largest));
}

std::string dataset_identity(const TokenDataset& data) {
  constexpr int64_t kPieces = 1024, kLeastPieces = 2;
  Digest digest;
  digest.update(data.index());
  const auto files = data.token_files();
  for (const auto& file : files) add_to_identity(digest, file, std::max(kLeastPieces, kPieces / std::ssize(files)));
  if (data.mask() != nullptr) add_to_identity(digest, data.mask()->bytes(), kPieces);
  if (const auto begin = data.own_validation_begin()) digest.update(std::as_bytes(std::span(&*begin, 1)));
  return digest.hex();
}

}  // namespace foresail
