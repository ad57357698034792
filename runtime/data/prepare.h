// `foresail data prepare`: text or JSONL to a token dataset (PREFIX.bin, PREFIX.idx, PREFIX.dataset.json).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/dataset.h"

namespace foresail {

/// The byte tokenizer: ids 0 to 255 are bytes, 256 ends a document.
inline constexpr int64_t kByteVocabulary = 257;
inline constexpr int32_t kByteEndOfDocument = 256;
std::vector<int32_t> encode_bytes(std::string_view text);
/// Ids of 256 and above have no text and are left out.
std::string decode_bytes(std::span<const int32_t> ids);

/// What one document of a text file is. JSONL has one per line: its "text", or its "prompt" and "completion".
enum class DocumentSplit : uint8_t {
  file,         ///< the whole file
  line,         ///< every line that is not empty
  blank_lines,  ///< paragraphs: runs of lines without an empty line
};

enum class TextFormat : uint8_t {
  automatic,  ///< JSONL if the name ends in .jsonl, .ndjson (then .gz or .zst), else text
  text,
  jsonl,
};

/// "file", "line", "blank-lines"; "auto", "text", "jsonl". Throw bad_input listing the choices.
DocumentSplit document_split_from_name(std::string_view name);
TextFormat text_format_from_name(std::string_view name);

struct PrepareProgress {
  std::string file;
  int64_t text_bytes = 0, documents = 0, tokens = 0;
};

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;  ///< read in this order; plain, gzip or zstd
  std::string tokenizer = "bytes";            ///< or the path of a tokenizer.json
  std::string end_of_document;  ///< an added token or an id of the tokenizer.json; empty: what its files say
  std::filesystem::path out;    ///< PREFIX; its folder is created
  DocumentSplit split = DocumentSplit::file;
  TextFormat format = TextFormat::automatic;
  std::function<void(const PrepareProgress&)> progress;  ///< called about every 16 MiB of text; may be empty
};

/// Bounded memory (a JSONL line may have 256 MiB). The files appear complete or, on any error, not at all; an older dataset
/// of that name is replaced. Every document ends with the end-of-document id; documents without text are left out. Prompts
/// do not count in the loss: if there are any, PREFIX.mask says which tokens do (loss_mask.h). Throws bad_input for a tokenizer that is not built, no input, damaged input or input without any text,
/// environment_failed if the disk is full.
DatasetInfo prepare_dataset(const PrepareOptions& options);

/// A document of a JSONL file. Prompt and text are tokenized apart, so that the mask's edge lies between tokens.
struct JsonDocument {
  std::string prompt;  ///< does not count in the loss
  std::string text;
};

/// One line of JSONL (prepare_json.cpp): {"text"} or {"prompt", "completion"}, other fields ignored. Throws bad_input
/// naming `source`.
JsonDocument document_of_json_line(std::string_view line, const std::string& source);

}  // namespace foresail
