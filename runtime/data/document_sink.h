// Where the text of documents becomes tokens of a dataset: bytes as they come, or batches through a tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/loss_mask.h"
#include "runtime/tokenizer/encoder.h"

namespace foresail {

/// The tokenizer of a dataset under construction.
struct DatasetTokenizer {
  std::string kind = "bytes";            ///< or kByteLevelBpe
  std::string name;                      ///< file name of the tokenizer.json; empty for bytes
  std::string text;                      ///< of the tokenizer.json; empty for bytes
  std::unique_ptr<Tokenizer> tokenizer;  ///< null: bytes
  int64_t vocabulary = 0;
  int32_t end_of_document = 0;
};

/// "bytes" or the path of a tokenizer.json; `end` as of end_of_document() (tokenizer.h), not for bytes. Throws bad_input.
DatasetTokenizer open_dataset_tokenizer(const std::string& tokenizer, const std::string& end);

/// Text cut into pieces that are encoded side by side. A document of more than a piece is cut only where that is proved
/// to change no id (may_cut_between); one that has no such place is held whole, up to 256 MiB.
class TextBatch {
 public:
  explicit TextBatch(const Tokenizer& tokenizer);

  void add(std::string_view text, bool counts);
  void end_document();
  bool full() const { return bytes_ >= kBatchBytes; }
  /// Calls `tokens(ids, counts, ends_document)` for every complete piece in order, and forgets them.
  template <typename Function>
  void encode(const Function& tokens) {
    encoder_.encode(texts_, ids_);
    for (size_t i = 0; i < texts_.size(); ++i)
      tokens(std::span<const int32_t>(ids_[i]), marks_[i].counts, marks_[i].ends);
    texts_.clear();
    marks_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kBatchBytes = size_t{8} << 20, kPieceBytes = size_t{64} << 10;
  struct Marks {
    bool counts, ends;
  };
  void close_piece(bool ends_document);
  void cut_open_piece();

  const Tokenizer& tokenizer_;
  ParallelEncoder encoder_;
  std::vector<std::string> texts_;
  std::vector<Marks> marks_;  ///< of texts_
  size_t bytes_ = 0;          ///< of texts_
  std::string open_;          ///< the piece under construction
  bool open_counts_ = true;
  size_t searched_ = 0;  ///< no place to cut open_ lies before it
  std::vector<std::vector<int32_t>> ids_;
};

/// Documents as they come in pieces. Every one ends with the end-of-document id; documents without tokens are left out.
class DocumentSink {
 public:
  DocumentSink(const std::filesystem::path& prefix, const DatasetTokenizer& tokenizer);

  /// `counts`: in the loss. Text on both sides of a change is tokenized apart.
  void add(std::string_view text, bool counts = true);
  void end_document();
  /// Writes what still waits to be encoded. After the last document.
  void drain();
  /// Completes the files.
  void finish();

  const IndexedDatasetWriter& writer() const { return writer_; }
  const LossMaskWriter& mask() const { return mask_; }
  int32_t maximum_id() const { return maximum_id_; }
  std::vector<LengthBin> document_lengths() const { return histogram_.bins(); }

 private:
  void append(std::span<const int32_t> ids, bool counts);
  void close_document();

  IndexedDatasetWriter writer_;
  LossMaskWriter mask_;
  LengthHistogram histogram_;
  int32_t end_of_document_;
  std::unique_ptr<TextBatch> batch_;  ///< null: bytes
  std::vector<int32_t> ids_;
  int32_t maximum_id_ = 0;
};

}  // namespace foresail
