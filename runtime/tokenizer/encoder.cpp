#include "runtime/tokenizer/encoder.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include <fmt/format.h>

#include "core/error.h"
#include "core/parallel.h"
#include "runtime/tokenizer/unicode.h"

namespace foresail {
namespace {

constexpr size_t kCachedWordBytes = 64, kCachedWords = size_t{1} << 16;

/// Collects the pieces that a stage makes, one behind, so that neighbours can be joined.
template <typename Function>
class PieceJoiner {
 public:
  PieceJoiner(SplitBehavior behavior, std::string_view text, const Function& piece)
      : behavior_(behavior), text_(text), piece_(piece) {}

  void add(Span span, bool match) {
    if (joins(match)) {
      held_.end = span.end;
    } else {
      flush();
      held_ = span;
      held_match_ = match;
    }
    last_match_ = match;
    if (behavior_ == SplitBehavior::removed && match) held_ = {span.end, span.end};
  }

  void flush() {
    if (held_.begin < held_.end) piece_(text_.substr(held_.begin, held_.end - held_.begin));
  }

 private:
  bool joins(bool match) const {
    if (held_.begin == held_.end) return false;
    switch (behavior_) {
      case SplitBehavior::contiguous: return match == held_match_;
      case SplitBehavior::merged_with_previous: return match && !last_match_;
      case SplitBehavior::merged_with_next: return !match && last_match_;
      default: return false;
    }
  }

  SplitBehavior behavior_;
  std::string_view text_;
  const Function& piece_;
  Span held_;
  bool held_match_ = false, last_match_ = false;
};

}  // namespace

TokenEncoder::TokenEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (const SplitStage& stage : tokenizer.stages) matchers_.emplace_back(stage.pattern);
  cache_.reserve(kCachedWords);
}

void TokenEncoder::encode(std::string_view text, std::vector<int32_t>& ids) {
  ids_ = &ids;
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    if (valid > 0) encode_valid(text.substr(0, valid));
    text.remove_prefix(valid);
    size_t foreign = 0;
    while (foreign < text.size() && code_point_at(text, foreign).bytes == 0) ++foreign;
    if (foreign > 0) encode_word(text.substr(0, foreign));
    text.remove_prefix(foreign);
  }
}

void TokenEncoder::encode_valid(std::string_view text) {
  tokenizer_.raw_added.split(text, [&](const TextPart& part) {
    if (part.id >= 0) {
      ids_->push_back(part.id);
    } else if (tokenizer_.nfc && may_change_in_nfc(part.text)) {
      encode_normalized(to_nfc(part.text));
    } else {
      encode_normalized(part.text);
    }
  });
}

void TokenEncoder::encode_normalized(std::string_view text) {
  tokenizer_.normalized_added.split(text, [&](const TextPart& part) {
    if (part.id >= 0) {
      ids_->push_back(part.id);
    } else {
      encode_stage(0, part.text);
    }
  });
}

void TokenEncoder::encode_stage(size_t stage, std::string_view piece) {
  const bool last = stage == tokenizer_.stages.size();
  const bool prefix = last ? tokenizer_.prefix_space : tokenizer_.stages[stage].prefix_space;
  if (prefix && !piece.starts_with(' ')) {
    std::string prefixed(1, ' ');
    prefixed += piece;
    return last ? encode_word(prefixed) : encode_words(stage, prefixed);
  }
  return last ? encode_word(piece) : encode_words(stage, piece);
}

void TokenEncoder::encode_words(size_t stage, std::string_view text) {
  const SplitStage& split = tokenizer_.stages[stage];
  const auto next = [&](std::string_view piece) { encode_stage(stage + 1, piece); };
  PieceJoiner joiner(split.behavior, text, next);
  size_t done = 0;
  while (done < text.size()) {
    const std::optional<Span> match = matchers_[stage].find(text, done);
    const Span found = match.value_or(Span{text.size(), text.size()});
    if (done < found.begin) joiner.add({done, found.begin}, split.invert);
    if (match) joiner.add(found, !split.invert);
    done = found.end;
  }
  joiner.flush();
}

void TokenEncoder::encode_word(std::string_view word) {
  if (word.size() <= kCachedWordBytes) {
    const auto cached = cache_.find(word);
    if (cached != cache_.end()) {
      const auto begin = cached_ids_.begin() + cached->second.begin;
      ids_->insert(ids_->end(), begin, begin + cached->second.count);
      return;
    }
  }
  const size_t first = ids_->size();
  const auto known = tokenizer_.ignore_merges ? tokenizer_.words.find(word) : tokenizer_.words.end();
  if (known != tokenizer_.words.end()) {
    ids_->push_back(known->second);
  } else {
    merge(word);
  }
  if (word.size() <= kCachedWordBytes) remember(word, first);
}

void TokenEncoder::merge(std::string_view word) {
  symbols_.clear();
  for (const char c : word) {
    const int32_t id = tokenizer_.byte_ids[static_cast<unsigned char>(c)];
    if (id < 0) {
      throw_bad_input("the tokenizer",
                      fmt::format("it has no token for the byte 0x{:02x}", static_cast<unsigned char>(c)),
                      "remove what is not UTF-8 from the text");
    }
    symbols_.push_back(id);
  }
  merge_word(tokenizer_.merges, symbols_, scratch_, *ids_);
}

void TokenEncoder::remember(std::string_view word, size_t first_id) {
  if (cache_.size() >= kCachedWords) {  // simpler than ageing, and text soon brings back the words that matter
    cache_.clear();
    cached_ids_.clear();
  }
  const CachedWord entry{static_cast<uint32_t>(cached_ids_.size()), static_cast<uint32_t>(ids_->size() - first_id)};
  cached_ids_.insert(cached_ids_.end(), ids_->begin() + static_cast<std::ptrdiff_t>(first_id), ids_->end());
  cache_.emplace(word, entry);
}

ParallelEncoder::ParallelEncoder(const Tokenizer& tokenizer) {
  for (int thread = 0; thread < thread_count(); ++thread) encoders_.emplace_back(tokenizer);
}

void ParallelEncoder::encode(std::span<const std::string> texts, std::vector<std::vector<int32_t>>& ids) {
  ids.resize(texts.size());
  std::vector<std::exception_ptr> failures(texts.size());
  std::atomic<size_t> next = 0;  // texts differ in length: whoever is free takes the next one
  parallel_ranges(std::ssize(encoders_), 1, [&](int64_t begin, int64_t, int) {
    TokenEncoder& encoder = encoders_[static_cast<size_t>(begin)];
    for (size_t i = next++; i < texts.size(); i = next++) {
      ids[i].clear();
      try {
        encoder.encode(texts[i], ids[i]);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace foresail
