#include "runtime/data/prepare.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/file.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/document_sink.h"

namespace foresail {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;
constexpr size_t kLineLimitBytes = size_t{256} << 20;
constexpr int64_t kProgressBytes = int64_t{16} << 20;

// Cuts text into documents at line ends, holding no line: paragraphs keep their inner line ends.
class TextSplitter {
 public:
  TextSplitter(DocumentSplit split, DocumentSink& sink) : split_(split), sink_(sink) {}

  void add(std::string_view text) {
    if (split_ == DocumentSplit::file) return sink_.add(text);
    while (!text.empty()) {
      const size_t end = text.find('\n');
      add_to_line(text.substr(0, end));
      if (end == std::string_view::npos) return;
      end_line();
      text.remove_prefix(end + 1);
    }
  }

  void finish() {
    end_carriage_return();
    sink_.end_document();
  }

 private:
  // A carriage return before a line end belongs to it; elsewhere it is text. A piece may end between the two.
  void end_carriage_return() {
    if (carriage_return_) emit("\r");
    carriage_return_ = false;
  }

  void add_to_line(std::string_view part) {
    if (part.empty()) return;
    end_carriage_return();
    carriage_return_ = part.back() == '\r';
    if (carriage_return_) part.remove_suffix(1);
    if (!part.empty()) emit(part);
  }

  void emit(std::string_view text) {
    if (line_end_pending_) sink_.add("\n");
    line_end_pending_ = false;
    line_empty_ = false;
    sink_.add(text);
  }

  void end_line() {
    carriage_return_ = false;
    if (split_ == DocumentSplit::line || line_empty_) {
      sink_.end_document();
      line_end_pending_ = false;
    } else {
      line_end_pending_ = true;
    }
    line_empty_ = true;
  }

  DocumentSplit split_;
  DocumentSink& sink_;
  bool line_empty_ = true, line_end_pending_ = false, carriage_return_ = false;
};

// One document per line that is not blank.
class JsonLines {
 public:
  JsonLines(std::string source, DocumentSink& sink) : source_(std::move(source)), sink_(sink) {}

  void add(std::string_view text) {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      const std::string_view part = text.substr(0, end);
      if (line_.size() + part.size() > kLineLimitBytes) {
        throw_bad_input(place(), "the line is longer than 256 MiB", "split that document");
      }
      line_ += part;
      if (end == std::string_view::npos) return;
      end_line();
      text.remove_prefix(end + 1);
    }
  }

  void finish() { end_line(); }

 private:
  std::string place() const { return source_ + ": line " + std::to_string(number_); }

  void end_line() {
    if (line_.find_first_not_of(" \t\r") != std::string::npos) {
      const JsonDocument document = document_of_json_line(line_, place());
      sink_.add(document.prompt, false);
      sink_.add(document.text);
      sink_.end_document();
    }
    line_.clear();
    ++number_;
  }

  std::string source_;
  DocumentSink& sink_;
  std::string line_;
  int64_t number_ = 1;
};

bool is_jsonl(const std::filesystem::path& path, TextFormat format) {
  if (format != TextFormat::automatic) return format == TextFormat::jsonl;
  std::filesystem::path name = path.filename();
  if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
  return name.extension() == ".jsonl" || name.extension() == ".ndjson";
}

// Feeds a whole input to `parser`.
template <typename Parser>
void feed(const std::filesystem::path& path, Parser parser, DocumentSink& sink, const PrepareOptions& options,
          PrepareProgress& progress) {
  const auto source = open_byte_source(path);
  std::vector<char> buffer(kReadBytes);
  int64_t reported = progress.text_bytes;
  progress.file = path.string();
  while (const int64_t got = source->read(buffer)) {
    parser.add(std::string_view(buffer.data(), static_cast<size_t>(got)));
    progress.text_bytes += got;
    if (options.progress && progress.text_bytes - reported >= kProgressBytes) {
      reported = progress.text_bytes;
      progress.documents = sink.writer().documents();
      progress.tokens = sink.writer().tokens();
      options.progress(progress);
    }
  }
  parser.finish();
}

DatasetInfo info_of(const DocumentSink& sink, const DatasetTokenizer& tokenizer) {
  const IndexedDatasetWriter& writer = sink.writer();
  DatasetInfo info;
  info.tokenizer = tokenizer.kind;
  info.tokenizer_name = tokenizer.name;
  if (tokenizer.tokenizer) info.tokenizer_digest = tokenizer.tokenizer->digest;
  info.vocabulary = tokenizer.vocabulary;
  info.end_of_document = tokenizer.end_of_document;
  info.maximum_id = sink.maximum_id();
  info.token_type = name_of(token_type_for(tokenizer.vocabulary));
  info.tokens = writer.tokens();
  info.documents = writer.documents();
  info.bin_bytes = writer.bin_bytes();
  info.idx_bytes = writer.idx_bytes();
  info.bin_digest = writer.bin_digest();
  info.idx_digest = writer.idx_digest();
  info.document_lengths = sink.document_lengths();
  if (const LossMaskWriter& mask = sink.mask(); mask.needed()) {
    info.mask = {mask.counted(), mask.bytes(), mask.digest()};
  }
  return info;
}

std::filesystem::path aside(const std::filesystem::path& path) { return path.string() + ".tmp"; }

// The index is removed before new tokens arrive and returns last but for the description, so that at no moment an index
// stands beside tokens or a mask of another dataset.
void publish(const std::filesystem::path& prefix, const DatasetInfo& info, const std::string& tokenizer) {
  const std::filesystem::path description = dataset_info_path(prefix);
  write_file_atomically(aside(description), dataset_info_to_json(info));
  RemoveOnFailure cleanup(aside(description));
  std::error_code error;
  for (const auto& old : {description, idx_path(prefix), mask_path(prefix), tokenizer_path(prefix)}) {
    std::filesystem::remove(old, error);
    if (error)
      throw_environment(old.string(), "cannot remove the older file: " + error.message(), "check its permissions");
  }
  rename_and_sync(aside(bin_path(prefix)), bin_path(prefix));
  RemoveOnFailure tokens_alone(bin_path(prefix)), mask_alone(mask_path(prefix));
  if (info.mask) rename_and_sync(aside(mask_path(prefix)), mask_path(prefix));
  RemoveOnFailure tokenizer_alone(tokenizer_path(prefix));
  if (!tokenizer.empty()) write_file_atomically(tokenizer_path(prefix), tokenizer);
  rename_and_sync(aside(idx_path(prefix)), idx_path(prefix));
  tokens_alone.release();
  mask_alone.release();
  tokenizer_alone.release();
  rename_and_sync(aside(description), description);
  cleanup.release();
}

/// The files of the dataset can be written, and none of them is an input that it would replace.
void require_outputs(const PrepareOptions& options) {
  for (const auto& path : {bin_path(options.out), idx_path(options.out), mask_path(options.out),
                           tokenizer_path(options.out), dataset_info_path(options.out)}) {
    require_writable_file(path);
    for (const auto& input : options.inputs) {
      std::error_code error;
      if (!std::filesystem::equivalent(input, path, error)) continue;
      throw_bad_input(input.string(), "the dataset would replace this input", "choose another --out");
    }
  }
}

}  // namespace

std::vector<int32_t> encode_bytes(std::string_view text) {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string decode_bytes(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) {
    if (id >= 0 && id < kByteEndOfDocument) text += static_cast<char>(id);
  }
  return text;
}

DocumentSplit document_split_from_name(std::string_view name) {
  if (name == "file") return DocumentSplit::file;
  if (name == "line") return DocumentSplit::line;
  if (name == "blank-lines") return DocumentSplit::blank_lines;
  throw_bad_input("--split " + std::string(name), "is not a way to split text", "use file, line or blank-lines");
}

TextFormat text_format_from_name(std::string_view name) {
  if (name == "auto") return TextFormat::automatic;
  if (name == "text") return TextFormat::text;
  if (name == "jsonl") return TextFormat::jsonl;
  throw_bad_input("--format " + std::string(name), "is not an input format", "use auto, text or jsonl");
}

DatasetInfo prepare_dataset(const PrepareOptions& options) {
  const DatasetTokenizer tokenizer = open_dataset_tokenizer(options.tokenizer, options.end_of_document);
  if (options.inputs.empty())
    throw_bad_input("data prepare", "no input file is given", "name at least one text or JSONL file");
  if (options.out.filename().empty()) {
    throw_bad_input("data prepare", "the output prefix '" + options.out.string() + "' names no file",
                    "give --out FOLDER/NAME");
  }
  for (const auto& input : options.inputs) PosixFile::open_to_read(input);  // all named files exist before any is read
  if (options.out.has_parent_path()) create_folder(options.out.parent_path());
  require_outputs(options);
  RemoveOnFailure bin(aside(bin_path(options.out))), idx(aside(idx_path(options.out))),
      mask(aside(mask_path(options.out)));
  DocumentSink sink(options.out, tokenizer);
  PrepareProgress progress;
  for (const auto& input : options.inputs) {
    if (is_jsonl(input, options.format)) {
      feed(input, JsonLines(input.string(), sink), sink, options, progress);
    } else {
      feed(input, TextSplitter(options.split, sink), sink, options, progress);
    }
  }
  sink.drain();
  if (sink.writer().documents() == 0) {
    throw_bad_input(options.inputs.front().string(), "the input holds no text", "give files that are not empty");
  }
  sink.finish();
  const DatasetInfo info = info_of(sink, tokenizer);
  publish(options.out, info, tokenizer.text);
  bin.release();
  idx.release();
  mask.release();
  return info;
}

}  // namespace foresail
