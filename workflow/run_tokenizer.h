// The tokenizer of a run, from its dataset to `sample`: a copy of tokenizer.json in the run's folder, its digest in every
// checkpoint's notes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/dataset.h"
#include "runtime/tokenizer/tokenizer.h"

namespace foresail {

/// What checkpoints note about a dataset's tokenizer.
void note_tokenizer(const DatasetInfo& info, std::map<std::string, std::string>& notes);

/// Copies PREFIX.tokenizer.json to RUN/tokenizer.json, if the dataset was made with one.
void keep_tokenizer(const std::filesystem::path& data, const std::filesystem::path& run);

/// One line if the tokenizer.json beside the model's config.json is not the dataset's; empty if it is, or if either is
/// unknown. `model`: a folder or a config.json; anything else has no tokenizer.
std::string tokenizer_difference(const std::filesystem::path& model, const std::filesystem::path& data);

/// Encodes prompts and decodes what a model says: bytes, or a tokenizer.json.
class TextCoder {
 public:
  /// The tokenizer of a checkpoint: `given` (a tokenizer.json) if it is not empty, otherwise the copy in the folder of its
  /// run, told by the digest in its notes. Throws bad_input if there is none or `given` is another.
  TextCoder(const Checkpoint& checkpoint, const std::filesystem::path& given);

  std::vector<int32_t> encode(std::string_view text) const;
  int64_t vocabulary() const { return vocabulary_; }  ///< ids below it stand for text
  int32_t end_of_document() const { return end_of_document_; }
  /// The text that is complete after this id.
  std::string next(int32_t id);
  std::string finish();

 private:
  void load(const std::filesystem::path& path, const std::map<std::string, std::string>& notes);

  std::unique_ptr<Tokenizer> tokenizer_;  ///< null: bytes
  std::optional<StreamDecoder> decoder_;
  int64_t vocabulary_ = 0;
  int32_t end_of_document_ = 0;
};

}  // namespace foresail
