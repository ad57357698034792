#include "runtime/data/document_sink.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "runtime/data/prepare.h"

namespace foresail {
namespace {

constexpr size_t kWholeDocumentLimitBytes = size_t{256} << 20;

}  // namespace

DatasetTokenizer open_dataset_tokenizer(const std::string& tokenizer, const std::string& end) {
  DatasetTokenizer result;
  if (tokenizer == "bytes") {
    if (!end.empty()) {
      throw_bad_input("--end-of-document", "the byte tokenizer ends documents with id 256", "leave it out");
    }
    result.vocabulary = kByteVocabulary;
    result.end_of_document = kByteEndOfDocument;
    return result;
  }
  const std::filesystem::path path = tokenizer;
  if (!std::filesystem::exists(path)) {
    throw_bad_input("tokenizer '" + tokenizer + "'", "there is no such file",
                    "use --tokenizer bytes, or the path of a tokenizer.json");
  }
  result.kind = kByteLevelBpe;
  result.name = path.filename().string();
  result.text = read_file(path, kTokenizerFileLimitBytes);
  result.tokenizer = std::make_unique<Tokenizer>(tokenizer_from_json(result.text, tokenizer));
  result.vocabulary = result.tokenizer->vocabulary;
  result.end_of_document = end_of_document(*result.tokenizer, path, end);
  return result;
}

TextBatch::TextBatch(const Tokenizer& tokenizer) : tokenizer_(tokenizer), encoder_(tokenizer) {}

void TextBatch::add(std::string_view text, bool counts) {
  if (counts != open_counts_) {
    close_piece(false);
    open_counts_ = counts;
  }
  open_ += text;
  cut_open_piece();
}

void TextBatch::end_document() { close_piece(true); }

void TextBatch::close_piece(bool ends_document) {
  if (open_.empty() && !ends_document) return;
  bytes_ += open_.size();
  texts_.push_back(std::move(open_));
  marks_.push_back({open_counts_, ends_document});
  open_.clear();
  searched_ = 0;
}

void TextBatch::cut_open_piece() {
  size_t begin = 0;
  while (open_.size() - begin > kPieceBytes) {
    const std::string_view rest = std::string_view(open_).substr(begin);
    const size_t cut = find_cut(tokenizer_, rest, std::max(kPieceBytes, searched_));
    searched_ = cut == std::string_view::npos ? rest.size() : 0;
    if (cut == std::string_view::npos) break;
    texts_.emplace_back(rest.substr(0, cut));
    marks_.push_back({open_counts_, false});
    bytes_ += cut;
    begin += cut;
  }
  open_.erase(0, begin);
  if (open_.size() > kWholeDocumentLimitBytes) {
    throw_bad_input("data prepare", "256 MiB of one document have no place where this tokenizer's text may be cut",
                    "split it: --split line or blank-lines");
  }
}

DocumentSink::DocumentSink(const std::filesystem::path& prefix, const DatasetTokenizer& tokenizer)
    : writer_(prefix, token_type_for(tokenizer.vocabulary)),
      mask_(prefix),
      end_of_document_(tokenizer.end_of_document),
      batch_(tokenizer.tokenizer ? std::make_unique<TextBatch>(*tokenizer.tokenizer) : nullptr) {}

void DocumentSink::add(std::string_view text, bool counts) {
  if (batch_) {
    batch_->add(text, counts);
    if (batch_->full()) drain();
    return;
  }
  ids_.clear();
  for (const char c : text) ids_.push_back(static_cast<unsigned char>(c));
  append(ids_, counts);
}

void DocumentSink::end_document() {
  if (!batch_) return close_document();
  batch_->end_document();
  if (batch_->full()) drain();
}

void DocumentSink::drain() {
  if (!batch_) return;
  batch_->encode([&](std::span<const int32_t> ids, bool counts, bool ends_document) {
    append(ids, counts);
    if (ends_document) close_document();
  });
}

void DocumentSink::finish() {
  writer_.finish();
  mask_.finish();
}

void DocumentSink::append(std::span<const int32_t> ids, bool counts) {
  if (ids.empty()) return;
  maximum_id_ = std::max(maximum_id_, *std::max_element(ids.begin(), ids.end()));
  writer_.append(ids);
  mask_.append(std::ssize(ids), counts);
}

void DocumentSink::close_document() {
  if (writer_.document_tokens() == 0) return;
  append(std::span(&end_of_document_, 1), true);
  histogram_.add(writer_.document_tokens());
  writer_.end_document();
}

}  // namespace foresail
