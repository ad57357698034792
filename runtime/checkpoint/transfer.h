// Weights to and from other systems: a checkpoint's parameters as a Hugging Face folder, and such a folder (or a checkpoint
// that was written by hand) as a checkpoint of ours. Both stream: no more than a band of one tensor is in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "runtime/checkpoint/elements.h"

namespace foresail {

struct ExportOptions {
  /// Element type of the files; nothing: as the checkpoint has them. A wider type than the parameters' takes the
  /// optimizer's master copy where there is one.
  std::optional<DType> dtype;
  int64_t max_shard_bytes =
      5'000'000'000;  ///< of the tensors in one file, but one tensor at least; transformers' default
};

struct TransferResult {
  std::string path;
  int64_t tensors = 0, parameters = 0, bytes = 0;  ///< bytes: of the data files
  std::vector<std::string> files;                  ///< data files
  Conversion conversion;                           ///< rounded is above 0 if precision was lost
  std::vector<std::string> notes;                  ///< what was left out, and why
};

/// A note of a checkpoint's state: the config.json that its weights came with, as it was.
inline constexpr const char* kConfigNote = "config.json";

/// Writes config.json, and model.safetensors or numbered files with model.safetensors.index.json, into `out`, which must
/// not exist or be empty: it appears complete or not at all. Tensors have their Hugging Face names and orientation; a tied
/// head is the embedding. Throws bad_input for a checkpoint that is damaged or not of its model, or a value that the type
/// cannot hold.
TransferResult export_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& out,
                                 const ExportOptions& options = {});

/// Writes the step folder `out`, which must not exist or be empty: it appears complete or not at all. From a folder of
/// weights: step 0, parameters in the files' own types. From a checkpoint: all that it holds, with digests. Throws
/// bad_input.
TransferResult import_weights(const std::filesystem::path& from, const std::filesystem::path& out);

/// One JSON document: path, tensors, parameters, bytes, files, rounded, notes.
std::string transfer_result_to_json(const TransferResult& result);

}  // namespace foresail
