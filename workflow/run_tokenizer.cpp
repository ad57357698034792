#include "workflow/run_tokenizer.h"

#include <fmt/format.h>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "runtime/data/prepare.h"
#include "runtime/tokenizer/encoder.h"
#include "workflow/run_notes.h"

namespace foresail {
namespace {

constexpr const char* kTokenizerFile = "tokenizer.json";

std::string note_of(const std::map<std::string, std::string>& notes, const char* name) {
  const auto found = notes.find(name);
  return found == notes.end() ? "" : found->second;
}

std::optional<DatasetInfo> read_info(const std::filesystem::path& data) {
  const auto path = dataset_info_path(data);
  if (!std::filesystem::exists(path)) return std::nullopt;
  return dataset_info_from_json(read_file(path), path.string());
}

/// Beside the checkpoint's files, its folder of checkpoints, or its run.
std::filesystem::path find_copy(const std::filesystem::path& checkpoint, const std::string& digest) {
  std::filesystem::path folder = std::filesystem::absolute(checkpoint).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "step-9/"
  for (int level = 0; level < 3; ++level, folder = folder.parent_path()) {
    const auto path = folder / kTokenizerFile;
    if (std::filesystem::exists(path) && digest_of(read_file(path, kTokenizerFileLimitBytes)) == digest) return path;
  }
  return {};
}

}  // namespace

void note_tokenizer(const DatasetInfo& info, std::map<std::string, std::string>& notes) {
  notes[kTokenizerNote] = info.tokenizer;
  if (info.tokenizer_digest.empty()) return;
  notes[kTokenizerDigestNote] = info.tokenizer_digest;
  notes[kEndOfDocumentNote] = std::to_string(info.end_of_document);
}

void keep_tokenizer(const std::filesystem::path& data, const std::filesystem::path& run) {
  const auto copy = tokenizer_path(data);
  if (!std::filesystem::exists(copy)) {
    if (const auto info = read_info(data); info && !info->tokenizer_digest.empty()) {
      log_warning("{} is missing: sample will need --tokenizer for this run's checkpoints", copy.string());
    }
    return;
  }
  write_file_atomically(run / kTokenizerFile, read_file(copy, kTokenizerFileLimitBytes));
}

std::string tokenizer_difference(const std::filesystem::path& model, const std::filesystem::path& data) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(model, error);
  if (!folder && !std::filesystem::is_regular_file(model, error)) return "";
  const auto of_model = (folder ? model : model.parent_path()) / kTokenizerFile;
  const auto info = std::filesystem::exists(of_model) ? read_info(data) : std::nullopt;
  if (!info || digest_of(read_file(of_model, kTokenizerFileLimitBytes)) == info->tokenizer_digest) return "";
  return fmt::format("{} was made with another tokenizer ({}) than the model's, {}: its ids may mean other text",
                     data.string(), info->tokenizer_name.empty() ? info->tokenizer : info->tokenizer_name,
                     of_model.string());
}

TextCoder::TextCoder(const Checkpoint& checkpoint, const std::filesystem::path& given) {
  const auto& notes = checkpoint.state().notes;
  const std::string kind = note_of(notes, kTokenizerNote), digest = note_of(notes, kTokenizerDigestNote);
  const bool bytes = kind.empty() || kind == "bytes";
  if (given == "bytes" || (given.empty() && bytes)) {
    if (!bytes) {
      throw_bad_input("--tokenizer bytes", fmt::format("the model was trained on tokens of '{}'", kind),
                      "name its tokenizer.json");
    }
    vocabulary_ = kByteVocabulary;
    end_of_document_ = kByteEndOfDocument;
    return;
  }
  if (kind == "bytes") {
    throw_bad_input("--tokenizer " + given.string(), "the model was trained on bytes", "leave it out");
  }
  if (!given.empty()) {
    load(given, notes);
    return;
  }
  const auto copy = digest.empty() ? std::filesystem::path() : find_copy(checkpoint.path(), digest);
  if (copy.empty()) {
    throw_bad_input(
        checkpoint.path().string(),
        fmt::format("it was trained on tokens of '{}', and its tokenizer.json is not in its run's folder", kind),
        "add --tokenizer tokenizer.json");
  }
  load(copy, notes);
}

void TextCoder::load(const std::filesystem::path& path, const std::map<std::string, std::string>& notes) {
  tokenizer_ = std::make_unique<Tokenizer>(load_tokenizer(path));
  const std::string digest = note_of(notes, kTokenizerDigestNote), end = note_of(notes, kEndOfDocumentNote);
  if (!digest.empty() && tokenizer_->digest != digest) {
    throw_bad_input("--tokenizer " + path.string(), "the model was trained with another tokenizer.json",
                    "give that one, or leave it out if the run's folder has it");
  }
  decoder_.emplace(*tokenizer_);
  vocabulary_ = tokenizer_->vocabulary;
  end_of_document_ = foresail::end_of_document(*tokenizer_, path, end);
}

std::vector<int32_t> TextCoder::encode(std::string_view text) const {
  if (!tokenizer_) return encode_bytes(text);
  std::vector<int32_t> ids;
  TokenEncoder(*tokenizer_).encode(text, ids);
  return ids;
}

std::string TextCoder::next(int32_t id) {
  return decoder_ ? decoder_->add(id) : decode_bytes(std::span<const int32_t>(&id, 1));
}

std::string TextCoder::finish() { return decoder_ ? decoder_->finish() : ""; }

}  // namespace foresail
