#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/checkpoint/model_weights.h"
#include "runtime/checkpoint/new_folder.h"
#include "runtime/checkpoint/transfer.h"

namespace foresail {
namespace {

// Large enough that the pieces of a checkpoint are seldom read twice, and that a transposed matrix is written in runs of
// some length.
constexpr int64_t kBandBytes = int64_t{32} << 20;

/// One tensor on its way out.
struct Outgoing {
  LogicalTensor tensor;
  const StoredTensor* stored = nullptr;
  DType dtype = DType::f32;  ///< in the file

  int64_t bytes() const { return stored->rows() * stored->columns() * size_of(dtype); }
};

const StoredTensor& stored_as(const Checkpoint& checkpoint, const LogicalTensor& tensor, std::optional<DType> dtype) {
  const Manifest& manifest = checkpoint.manifest();
  const StoredTensor* const parameter = manifest.find(tensor.tensor, Quantity::parameter);
  if (parameter == nullptr || parameter->shape != tensor.shape) {
    throw_bad_input(checkpoint.path().string(),
                    fmt::format("{} tensor '{}' {}", parameter == nullptr ? "has no" : "its", tensor.tensor,
                                parameter == nullptr ? "of its model" : "has another shape than its model's"),
                    "use a checkpoint that foresail wrote");
  }
  const StoredTensor* const master = manifest.find(tensor.tensor, Quantity::master);
  const bool wider = dtype && size_of(*dtype) > size_of(parameter->dtype);
  return wider && master != nullptr && master->shape == tensor.shape ? *master : *parameter;
}

std::vector<Outgoing> outgoing_tensors(const Checkpoint& checkpoint, const ModelSpec& model,
                                       std::optional<DType> dtype) {
  std::vector<Outgoing> tensors;
  for (const LogicalTensor& tensor : logical_tensors(model)) {
    const StoredTensor& stored = stored_as(checkpoint, tensor, dtype);
    tensors.push_back({tensor, &stored, dtype.value_or(stored.dtype)});
  }
  const auto& all = checkpoint.manifest().tensors;
  const auto parameters = std::count_if(
      all.begin(), all.end(), [](const StoredTensor& stored) { return stored.quantity == Quantity::parameter; });
  if (parameters != std::ssize(tensors)) {
    throw_bad_input(checkpoint.path().string(),
                    fmt::format("holds {} tensors, its model has {}", parameters, tensors.size()),
                    "use a checkpoint that foresail wrote");
  }
  return tensors;
}

/// In the order of the model, as many to a file as its limit allows.
std::vector<std::vector<Outgoing>> shards_of(std::vector<Outgoing> tensors, int64_t max_bytes) {
  std::vector<std::vector<Outgoing>> shards;
  int64_t bytes = 0;
  for (Outgoing& tensor : tensors) {
    if (shards.empty() || bytes + tensor.bytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  return count == 1 ? kWeightFileName : fmt::format("model-{:05d}-of-{:05d}.safetensors", index + 1, count);
}

/// A band of rows becomes, for each column, a run of a row of the file.
void write_transposed(SafetensorsWriter& writer, size_t index, const Rectangle& rows, int64_t tensor_rows,
                      int64_t element_bytes, std::span<const std::byte> elements) {
  const auto size = static_cast<size_t>(element_bytes), width = static_cast<size_t>(rows.columns());
  std::vector<std::byte> run(static_cast<size_t>(rows.rows()) * size);
  for (size_t column = 0; column < width; ++column) {
    for (size_t row = 0; row < static_cast<size_t>(rows.rows()); ++row) {
      std::memcpy(run.data() + row * size, elements.data() + (row * width + column) * size, size);
    }
    writer.write(index, (static_cast<int64_t>(column) * tensor_rows + rows.row_begin) * element_bytes, run);
  }
}

Conversion write_tensor(SafetensorsWriter& writer, size_t index, const Outgoing& tensor, const TensorSource& source) {
  const int64_t element_bytes = size_of(tensor.dtype);
  Conversion result;
  std::vector<std::byte> converted;
  for_each_band(source, kBandBytes, [&](const Rectangle& rows, std::span<const std::byte> elements) {
    if (tensor.dtype != source.dtype) {
      converted.resize(static_cast<size_t>(rows.elements() * element_bytes));
      result += convert_elements(elements, source.dtype, converted.data(), tensor.dtype, source.what);
      elements = converted;
    } else {
      result.elements += rows.elements();
    }
    if (tensor.tensor.transposed_in_file) {
      return write_transposed(writer, index, rows, source.rows(), element_bytes, elements);
    }
    writer.write(index, rows.row_begin * source.columns() * element_bytes, elements);
  });
  return result;
}

Conversion write_shard(const std::filesystem::path& path, const std::vector<Outgoing>& tensors,
                       const Checkpoint& checkpoint) {
  std::vector<TensorToWrite> to_write;
  for (const Outgoing& tensor : tensors) {
    to_write.push_back({tensor.tensor.tensor, std::string(safetensors_type(tensor.dtype)), tensor.tensor.file_shape()});
  }
  SafetensorsWriter writer(path, to_write, {{"format", "pt"}});
  Conversion result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    result += write_tensor(writer, i, tensors[i], checkpoint.source(*tensors[i].stored));
  }
  writer.finish();
  return result;
}

/// The config.json that the weights came with, if the model is still the one it describes, otherwise one of our own.
std::string config_of(const Checkpoint& checkpoint, const ModelSpec& model, DType dtype) {
  const std::string own = write_model_config(model), source = checkpoint.path().string() + ": its config.json";
  const auto note = checkpoint.state().notes.find(kConfigNote);
  const bool same = note != checkpoint.state().notes.end() &&
                    config_differences(write_model_config(parse_model_config(note->second, source)), own).empty();
  return with_dtype(same ? note->second : own, dtype, source);
}

}  // namespace

TransferResult export_checkpoint(const std::filesystem::path& path, const std::filesystem::path& out,
                                 const ExportOptions& options) {
  require_checkpoint(path);
  const Checkpoint checkpoint(path);
  checkpoint.check_files();
  const ModelSpec model = parse_model_config(checkpoint.state().model_config, path.string() + ": model_config");
  const std::vector<Outgoing> tensors = outgoing_tensors(checkpoint, model, options.dtype);
  const auto shards = shards_of(tensors, std::max<int64_t>(1, options.max_shard_bytes));
  NewFolder folder(out);
  TransferResult result;
  result.path = out.string();
  WeightIndex index;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    result.conversion += write_shard(folder.aside() / name, shards[i], checkpoint);
    result.bytes += static_cast<int64_t>(std::filesystem::file_size(folder.aside() / name));
    result.files.push_back(name);
    for (const Outgoing& tensor : shards[i]) {
      index.files[tensor.tensor.tensor] = name;
      index.total_bytes += tensor.bytes();
    }
  }
  if (shards.size() > 1) write_file_atomically(folder.aside() / kWeightIndexName, weight_index_to_json(index));
  write_file_atomically(folder.aside() / kModelConfigName, config_of(checkpoint, model, tensors.front().dtype));
  folder.publish();
  result.tensors = std::ssize(tensors);
  result.parameters = result.conversion.elements;
  if (!checkpoint.manifest().sealed)
    result.notes.push_back(path.string() + ": it holds no digests: nothing was verified");
  return result;
}

}  // namespace foresail
