// A folder of weights as Hugging Face lays it out: config.json, and model.safetensors or several files of which
// model.safetensors.index.json says which holds what.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "runtime/checkpoint/safetensors.h"

namespace foresail {

inline constexpr const char* kWeightFileName = "model.safetensors";
inline constexpr const char* kWeightIndexName = "model.safetensors.index.json";
inline constexpr const char* kModelConfigName = "config.json";

/// Whether the folder has safetensors weights, complete or not.
bool holds_weights(const std::filesystem::path& folder);

/// All headers, read and checked; tensors are read by position afterwards, as safetensors.h does.
class WeightFolder {
 public:
  /// Throws bad_input naming file and tensor: no weights, weights of another format, a damaged header, an index that names
  /// files or tensors that are not there or leaves some out, a tensor in two files.
  explicit WeightFolder(const std::filesystem::path& folder);

  struct Place {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* entry = nullptr;
    std::string what() const;  ///< file and tensor
  };
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, Place, std::less<>>& tensors() const { return tensors_; }
  const std::optional<std::string>& config() const { return config_; }  ///< the text of config.json, if there is one
  /// The file that says what there is: the index, or the only file.
  const std::filesystem::path& list() const { return list_; }

 private:
  void add_file(const std::string& name);
  void add_indexed_files();

  std::filesystem::path path_, list_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> tensors_;
  std::optional<std::string> config_;
};

// The JSON beside the weights (weight_folder_json.cpp).

struct WeightIndex {
  std::map<std::string, std::string> files;  ///< of every tensor, by its name
  int64_t total_bytes = 0;                   ///< of all tensors; written, not believed
};
/// Throws bad_input.
WeightIndex weight_index_from_json(const std::string& text, const std::string& source);
/// Names in order, as Hugging Face writes them.
std::string weight_index_to_json(const WeightIndex& index);

/// How many layers for predicting further tokens the file has behind the model's own (num_nextn_predict_layers).
int64_t prediction_layers(const std::string& config, const std::string& source);
/// config.json with another element type ("torch_dtype", and "dtype" as newer versions call it).
std::string with_dtype(const std::string& config, DType dtype, const std::string& source);
/// One line for each key of the architecture that two configs (as write_model_config writes them) state differently.
/// Dropout and initialisation are the run's own affair.
std::vector<std::string> config_differences(const std::string& folder, const std::string& plan);

}  // namespace foresail
