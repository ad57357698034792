#include <algorithm>

#include <fmt/format.h>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/version.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/checkpoint/model_weights.h"
#include "runtime/checkpoint/new_folder.h"
#include "runtime/checkpoint/transfer.h"

namespace foresail {
namespace {

constexpr int64_t kBandBytes = int64_t{32} << 20;
constexpr const char* kFileName = "rank-00000.safetensors";

/// One tensor on its way in.
struct Incoming {
  std::string tensor;
  Quantity quantity = Quantity::parameter;
  TensorSource source;
};

/// Cuts a stream of bytes into pieces and digests each.
class PieceDigests {
 public:
  void update(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto count = static_cast<size_t>(std::min<int64_t>(std::ssize(bytes), kPieceBytes - filled_));
      digest_.update(bytes.first(count));
      filled_ += static_cast<int64_t>(count);
      bytes = bytes.subspan(count);
      if (filled_ == kPieceBytes) end_piece();
    }
  }
  std::vector<std::string> finish() {
    if (filled_ > 0) end_piece();
    return std::move(pieces_);
  }

 private:
  void end_piece() {
    pieces_.push_back(digest_.hex());
    digest_ = Digest();
    filled_ = 0;
  }

  Digest digest_;
  int64_t filled_ = 0;
  std::vector<std::string> pieces_;
};

/// Writes one tensor as a single slab.
void write_tensor(SafetensorsWriter& writer, size_t index, const Incoming& incoming, RankPart& part) {
  const TensorSource& source = incoming.source;
  const Rectangle whole{0, source.rows(), 0, source.columns()};
  StoredTensor stored{incoming.tensor, incoming.quantity, source.shape, source.dtype, {}, {}};
  PieceDigests pieces;
  ElementSum sum;
  int64_t written = 0;
  for_each_band(source, kBandBytes, [&](const Rectangle& rows, std::span<const std::byte> elements) {
    pieces.update(elements);
    sum += sum_elements(elements.data(), source.dtype, rows, source.columns(), source.columns());
    writer.write(index, written, elements);
    written += std::ssize(elements);
  });
  stored.slabs.push_back({whole, 0, stored.full_name(), writer.entry(index).offset, pieces.finish()});
  part.tensors.push_back(std::move(stored));
  part.sums.push_back(sum);
}

RankPart write_data(const std::filesystem::path& folder, const std::vector<Incoming>& tensors) {
  std::vector<TensorToWrite> to_write;
  for (const Incoming& incoming : tensors) {
    to_write.push_back({incoming.tensor + std::string(suffix_of(incoming.quantity)),
                        std::string(safetensors_type(incoming.source.dtype)), incoming.source.shape});
  }
  RankPart part;
  SafetensorsWriter writer(folder / kFileName, to_write, {{"format", "foresail.checkpoint/1"}});
  int64_t header_bytes = writer.entry(0).offset, data_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    write_tensor(writer, i, tensors[i], part);
    header_bytes = std::min(header_bytes, writer.entry(i).offset);
    data_bytes += writer.entry(i).bytes;
  }
  writer.finish();
  std::string header(static_cast<size_t>(header_bytes), '\0');
  PosixFile::open_to_read(folder / kFileName).read_at(0, std::as_writable_bytes(std::span(header)));
  part.files.push_back({kFileName, header_bytes + data_bytes, digest_of(header)});
  return part;
}

TransferResult write_checkpoint(const std::filesystem::path& out, const std::vector<Incoming>& tensors,
                                const RunState& state) {
  if (tensors.empty()) throw_bad_input(out.string(), "there is nothing to write", "import weights");
  NewFolder folder(out);
  const Manifest manifest =
      join_parts({write_data(folder.aside(), tensors)}, state, kPieceBytes, folder.aside().string());
  write_file_atomically(folder.aside() / kManifestName, manifest_to_json(manifest));
  folder.publish();
  TransferResult result;
  result.path = out.string();
  result.tensors = std::ssize(manifest.tensors);
  result.bytes = manifest.data_bytes();
  result.files = {kFileName};
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.quantity == Quantity::parameter) result.parameters += tensor.rows() * tensor.columns();
  }
  return result;
}

TransferResult import_folder(const std::filesystem::path& from, const std::filesystem::path& out) {
  const std::filesystem::path config_path = from / kModelConfigName;
  const WeightFolder folder(from);
  if (!folder.config()) {
    throw_bad_input(config_path.string(), "there is no such file: it says what model the weights are",
                    "put the model's config.json beside its weights");
  }
  const ModelSpec model = parse_model_config(*folder.config(), config_path.string());
  const ModelWeights weights(from, model);
  weights.check_head_copy();
  std::vector<Incoming> tensors;
  for (size_t i = 0; i < weights.tensors().size(); ++i) {
    tensors.push_back({weights.tensors()[i].tensor, Quantity::parameter, weights.source(i)});
  }
  RunState state;
  state.foresail_version = version_text();
  state.model_name = model.name;
  state.model_config = write_model_config(model);
  state.notes[kConfigNote] = *folder.config();
  TransferResult result = write_checkpoint(out, tensors, state);
  result.notes = weights.notes();
  return result;
}

/// Digests made where there were none; where there were, they are verified on the way.
TransferResult import_checkpoint(const std::filesystem::path& from, const std::filesystem::path& out) {
  const Checkpoint checkpoint(from);
  checkpoint.check_files();
  std::vector<Incoming> tensors;
  for (const StoredTensor& stored : checkpoint.manifest().tensors) {
    tensors.push_back({stored.tensor, stored.quantity, checkpoint.source(stored)});
  }
  return write_checkpoint(out, tensors, checkpoint.state());
}

}  // namespace

TransferResult import_weights(const std::filesystem::path& from, const std::filesystem::path& out) {
  std::error_code error;
  const bool is_checkpoint = std::filesystem::exists(from / kManifestName, error);
  return is_checkpoint ? import_checkpoint(from, out) : import_folder(from, out);
}

}  // namespace foresail
