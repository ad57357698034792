#include "runtime/checkpoint/model_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "models/weight_names.h"
#include "program/compile.h"

namespace foresail {
namespace {

constexpr int64_t kStagingBytes = int64_t{4} << 20;
/// What PyTorch modules keep beside their weights: causal masks and rotary frequencies, which we compute.
constexpr std::array<std::string_view, 4> kBufferEndings = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq",
                                                            ".rotary_emb.original_inv_freq"};

bool is_buffer(std::string_view tensor) {
  return std::any_of(kBufferEndings.begin(), kBufferEndings.end(),
                     [&](std::string_view ending) { return ("." + std::string(tensor)).ends_with(ending); });
}

/// The first number among the words of a name: "model.layers.12.mlp" -> 12; -1 if there is none.
int64_t layer_of(std::string_view tensor) {
  while (!tensor.empty()) {
    const std::string_view word = tensor.substr(0, tensor.find('.'));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error == std::errc() && end == word.data() + word.size()) return number;
    tensor.remove_prefix(std::min(tensor.size(), word.size() + 1));
  }
  return -1;
}

std::string text_of(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Names the first of some tensors and counts the others.
std::string first_of(const std::vector<std::string>& tensors) {
  return fmt::format("'{}'{}", tensors.front(),
                     tensors.size() > 1 ? fmt::format(" and {} more", tensors.size() - 1) : "");
}

Rectangle turned(const Rectangle& part) { return {part.column_begin, part.column_end, part.row_begin, part.row_end}; }

/// A rectangle of the tensor as it lies in the file, block by block; a block's rows follow each other without a gap.
void read_blocks(const WeightFolder::Place& place, int64_t file_columns, DType dtype, const Rectangle& part,
                 const std::function<void(const Rectangle& block, std::span<const std::byte> bytes)>& take) {
  const int64_t element_bytes = size_of(dtype);
  const int64_t width = std::min(part.columns(), kStagingBytes / element_bytes);
  const int64_t height = std::clamp<int64_t>(kStagingBytes / (width * element_bytes), 1, part.rows());
  std::vector<std::byte> staging(static_cast<size_t>(width * height * element_bytes));
  for (int64_t row = part.row_begin; row < part.row_end; row += height) {
    for (int64_t column = part.column_begin; column < part.column_end; column += width) {
      const Rectangle block{row, std::min(part.row_end, row + height), column,
                            std::min(part.column_end, column + width)};
      const std::span<std::byte> bytes(staging.data(), static_cast<size_t>(block.elements() * element_bytes));
      const bool whole_rows = block.columns() == file_columns;
      const int64_t reads = whole_rows ? 1 : block.rows();
      const auto share = bytes.size() / static_cast<size_t>(reads);
      for (int64_t i = 0; i < reads; ++i) {
        const int64_t first = (block.row_begin + i) * file_columns + block.column_begin;
        place.file->read(*place.entry, first * element_bytes, bytes.subspan(static_cast<size_t>(i) * share, share));
      }
      take(block, bytes);
    }
  }
}

void hand_rows(const Rectangle& block, std::span<const std::byte> bytes, const RowSink& sink) {
  const size_t row_bytes = bytes.size() / static_cast<size_t>(block.rows());
  for (int64_t row = block.row_begin; row < block.row_end; ++row) {
    sink(row, block.column_begin, bytes.subspan(static_cast<size_t>(row - block.row_begin) * row_bytes, row_bytes));
  }
}

/// `bytes` holds a block of rows; afterwards `out` holds its columns as rows.
void transpose(const Rectangle& block, std::span<const std::byte> bytes, int64_t element_bytes,
               std::vector<std::byte>& out) {
  const auto size = static_cast<size_t>(element_bytes), rows = static_cast<size_t>(block.rows()),
             columns = static_cast<size_t>(block.columns());
  out.resize(bytes.size());
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      std::memcpy(out.data() + (column * rows + row) * size, bytes.data() + (row * columns + column) * size, size);
    }
  }
}

DType dtype_of(const WeightFolder::Place& place) {
  const auto dtype = dtype_from_safetensors(place.entry->type);
  if (!dtype || !is_float(*dtype)) {
    throw_bad_input(place.what(), fmt::format("is {}; parameters are F64, F32, BF16 or F16", place.entry->type),
                    "use the weights of the unquantized model");
  }
  return *dtype;
}

TensorSource source_of(const WeightFolder::Place& place, const LogicalTensor& tensor) {
  const DType dtype = dtype_of(place);
  TensorSource source{place.what(), tensor.shape, dtype, {}};
  const int64_t file_columns = tensor.shape.size() == 1 ? 1 : place.entry->shape[1];
  source.read = [place, dtype, file_columns, transposed = tensor.transposed_in_file](const Rectangle& part,
                                                                                     const RowSink& sink) {
    if (part.elements() <= 0) return;
    if (!transposed) {
      return read_blocks(place, file_columns, dtype, part,
                         [&](const Rectangle& block, auto bytes) { hand_rows(block, bytes, sink); });
    }
    std::vector<std::byte> rows;
    read_blocks(place, file_columns, dtype, turned(part), [&](const Rectangle& block, auto bytes) {
      transpose(block, bytes, size_of(dtype), rows);
      hand_rows(turned(block), rows, sink);
    });
  };
  return source;
}

}  // namespace

std::vector<int64_t> LogicalTensor::file_shape() const {
  return transposed_in_file ? std::vector<int64_t>(shape.rbegin(), shape.rend()) : shape;
}

std::vector<LogicalTensor> logical_tensors(const ModelSpec& model) {
  std::vector<LogicalTensor> tensors;
  std::set<std::string_view> known;
  const RankSlices slices = rank_slices(model, Strategy{}, {});  // of a single rank, which holds all of them
  for (const ParameterSlice& slice : slices.parameters) {
    if (!slice.second_holder && known.insert(slice.tensor).second) {
      tensors.push_back({slice.tensor, slice.shape, slice.transposed_in_file});
    }
  }
  return tensors;
}

ModelWeights::ModelWeights(const std::filesystem::path& folder, const ModelSpec& model)
    : model_(model), folder_(folder), tensors_(logical_tensors(model)) {
  const std::string& first = tensors_.front().tensor;
  prefix_ = first.substr(0, first.find('.') + 1);
  match();
  judge_rest();
}

/// Under its whole name, or without the prefix.
const WeightFolder::Place* ModelWeights::find(const std::string& tensor) const {
  const auto& there = folder_.tensors();
  const auto whole = there.find(tensor);
  const auto bare = tensor.starts_with(prefix_) ? there.find(tensor.substr(prefix_.size())) : there.end();
  if (whole != there.end() && bare != there.end()) {
    throw_bad_input(whole->second.what(),
                    fmt::format("is in {} as '{}' too", bare->second.file->path().filename().string(), bare->first),
                    "keep one of the two");
  }
  if (whole != there.end()) return &whole->second;
  return bare != there.end() ? &bare->second : nullptr;
}

void ModelWeights::match() {
  std::vector<std::string> missing;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const LogicalTensor& tensor = tensors_[i];
    const WeightFolder::Place* const place = find(tensor.tensor);
    if (place == nullptr) {
      missing.push_back(tensor.tensor);
      continue;
    }
    dtype_of(*place);
    if (place->entry->shape != tensor.file_shape()) {
      throw_bad_input(place->what(),
                      fmt::format("has shape {}, in the model it is {}", text_of(place->entry->shape),
                                  text_of(tensor.file_shape())),
                      "use the weights and the config.json of one model");
    }
    places_.push_back(*place);
    by_name_.emplace(tensor.tensor, i);
  }
  if (missing.empty()) return;
  const bool head = missing.front() == weight_names(model_).head + ".weight";
  throw_bad_input(folder_.list().string(), "has no tensor " + first_of(missing),
                  head ? "if the head is the embedding, state \"tie_word_embeddings\": true in config.json"
                       : "use the weights and the config.json of one model");
}

/// Everything that no tensor of the model has taken.
void ModelWeights::judge_rest() {
  std::set<const TensorEntry*> taken;
  for (const WeightFolder::Place& place : places_) taken.insert(place.entry);
  const int64_t predictors =
      folder_.config() ? prediction_layers(*folder_.config(), (folder_.path() / kModelConfigName).string()) : 0;
  std::vector<std::string> superfluous;
  std::string where;
  for (const auto& [name, place] : folder_.tensors()) {
    if (taken.count(place.entry) != 0) continue;
    const int64_t layer = layer_of(name);
    if (is_buffer(name)) {
      ++buffers_;
    } else if (model_.tied_embeddings && name == weight_names(model_).head + ".weight") {
      head_copy_ = &place;
    } else if (layer >= model_.layers && layer < model_.layers + predictors) {
      ++predictors_;
    } else {
      if (superfluous.empty()) where = place.file->path().string();
      superfluous.push_back(name);
    }
  }
  if (superfluous.empty()) return;
  throw_bad_input(where, fmt::format("the model has no tensor {}", first_of(superfluous)),
                  "use the weights and the config.json of one model");
}

TensorSource ModelWeights::source(size_t index) const { return source_of(places_.at(index), tensors_.at(index)); }

TensorSource ModelWeights::source(std::string_view tensor) const {
  const auto found = by_name_.find(tensor);
  ensure(found != by_name_.end(), "every tensor that a plan holds is one of its model");
  return source(found->second);
}

DType ModelWeights::dtype(size_t index) const { return dtype_of(places_.at(index)); }

std::vector<std::string> ModelWeights::notes() const {
  std::vector<std::string> lines;
  if (head_copy_ != nullptr) {
    lines.push_back(
        fmt::format("{} is left out: the model's head is its embedding, and the two are equal", head_copy_->what()));
  }
  if (buffers_ > 0) {
    lines.push_back(fmt::format("{}: {} buffers (masks, rotary frequencies) are left out: they are computed",
                                folder_.path().string(), buffers_));
  }
  if (predictors_ > 0) {
    lines.push_back(fmt::format("{}: {} tensors of layers that predict further tokens are left out",
                                folder_.path().string(), predictors_));
  }
  if (!folder_.config()) return lines;
  const std::string source = (folder_.path() / kModelConfigName).string();
  const ModelSpec own = parse_model_config(*folder_.config(), source);
  for (const std::string& line : config_differences(write_model_config(own), write_model_config(model_))) {
    lines.push_back(fmt::format("{}: {}: the plan's is trained", source, line));
  }
  return lines;
}

void ModelWeights::check_head_copy() const {
  if (head_copy_ == nullptr) return;
  const size_t embedding = by_name_.at(weight_names(model_).token_embedding + ".weight");
  LogicalTensor head = tensors_[embedding];
  bool equal = head_copy_->entry->shape == head.file_shape();
  if (equal) {
    const TensorSource copy = source_of(*head_copy_, head), original = source(embedding);
    std::vector<std::byte> values;
    for_each_band(original, kStagingBytes, [&](const Rectangle& rows, std::span<const std::byte> elements) {
      copy.read(rows, [&](int64_t row, int64_t column, std::span<const std::byte> own) {
        // Compared in the embedding's type: a copy in another one is still a copy if nothing is lost.
        values.resize(own.size() / static_cast<size_t>(size_of(copy.dtype)) *
                      static_cast<size_t>(size_of(original.dtype)));
        const Conversion made = convert_elements(own, copy.dtype, values.data(), original.dtype, copy.what);
        const int64_t at = ((row - rows.row_begin) * rows.columns() + column) * size_of(original.dtype);
        equal = equal && made.rounded == 0 && std::memcmp(elements.data() + at, values.data(), values.size()) == 0;
      });
    });
  }
  if (equal) return;
  throw_bad_input(head_copy_->what(), "differs from the embedding, to which config.json ties it",
                  "state \"tie_word_embeddings\": false in config.json to train both, or remove the tensor");
}

RestoredWeights restore_weights(const std::filesystem::path& folder, const ModelSpec& model,
                                std::span<const SegmentView> segments, const CheckpointRanks& ranks) {
  RestoredWeights restored;
  const std::vector<std::string> counts = all_do(ranks, [&] {
    const ModelWeights weights(folder, model);
    if (ranks.rank() == 0) weights.check_head_copy();
    restored.config = weights.folder().config().value_or("");
    Conversion own;
    for (const SegmentView& segment : segments) {
      for (const ParameterSlice& slice : segment.slices) {
        if (slice.elements() == 0) continue;
        own += fill_slice(weights.source(slice.tensor), slice, begin_of(segment, slice), segment.dtype);
      }
    }
    return fmt::format("{} {}", own.elements, own.rounded);
  });
  for (const std::string& count : counts) {
    restored.conversion += {std::stoll(count), std::stoll(count.substr(count.find(' ') + 1))};
  }
  for (const SegmentView& segment : segments) {
    const auto digests = tensor_digests(segment, ranks);
    if (segment.quantity == Quantity::parameter) restored.parameters_digest = combine_digests(digests);
  }
  return restored;
}

}  // namespace foresail
