// A folder of weights matched with a model: every logical tensor of the model's graphs has its tensor in the files. What
// tensors are called comes from the graphs, so a family is imported and exported without a line here.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/tensor_source.h"
#include "runtime/checkpoint/weight_folder.h"

namespace foresail {

/// A tensor of a model as Hugging Face files have it.
struct LogicalTensor {
  std::string tensor;
  std::vector<int64_t> shape;       ///< [out, in] or [n]
  bool transposed_in_file = false;  ///< there [in, out]

  std::vector<int64_t> file_shape() const;
};

/// Embedding, layers, head; a tied head is the embedding.
std::vector<LogicalTensor> logical_tensors(const ModelSpec& model);

class ModelWeights {
 public:
  /// Throws bad_input naming tensor and file: a tensor that is missing, superfluous, there under two names, of another shape
  /// or of a type that is no float. Names may lack the first word of the model's own ("transformer.", "model."), as files
  /// saved from the model without its head do. Buffers (masks, frequencies) are passed over.
  ModelWeights(const std::filesystem::path& folder, const ModelSpec& model);

  const WeightFolder& folder() const { return folder_; }
  const std::vector<LogicalTensor>& tensors() const { return tensors_; }
  /// A tensor of tensors(), in the model's orientation. Reads only what is asked for, at most 4 MiB at a time.
  TensorSource source(size_t index) const;
  TensorSource source(std::string_view tensor) const;
  DType dtype(size_t index) const;

  /// One line each: what the files hold that was not taken, and where config.json describes another model than this.
  std::vector<std::string> notes() const;
  /// The files have a head although the model's is the embedding: throws bad_input unless the two are equal. Reads both.
  void check_head_copy() const;

 private:
  const WeightFolder::Place* find(const std::string& tensor) const;
  void match();
  void judge_rest();

  ModelSpec model_;
  WeightFolder folder_;
  std::vector<LogicalTensor> tensors_;
  std::vector<WeightFolder::Place> places_;  ///< of tensors_
  std::map<std::string, size_t, std::less<>> by_name_;
  std::string prefix_;  ///< first word of the names, with its dot
  const WeightFolder::Place* head_copy_ = nullptr;
  int64_t buffers_ = 0, predictors_ = 0;  ///< tensors passed over
};

/// What restoring from a folder of weights has come to.
struct RestoredWeights {
  std::string parameters_digest;
  Conversion conversion;  ///< of all ranks together
  std::string config;     ///< the folder's config.json; empty: none
};

/// Collective. Fills parameters and master copies, each rank reading the rectangles that it holds; replicas must then be
/// equal. `segments` holds these two quantities only.
RestoredWeights restore_weights(const std::filesystem::path& folder, const ModelSpec& model,
                                std::span<const SegmentView> segments, const CheckpointRanks& ranks);

}  // namespace foresail
