// Text to token ids: one thread's encoder, and many texts on all threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace foresail {

/// One thread's scratch memory and cache of words. The tokenizer must outlive it.
class TokenEncoder {
 public:
  explicit TokenEncoder(const Tokenizer& tokenizer);

  /// Appends the ids of the text, as Hugging Face's encode without special tokens added around it does. Bytes that are no
  /// UTF-8, which it cannot be given, become words of their own, so that decoding returns them. Throws bad_input if a
  /// pattern explodes on this text, or for a byte that the vocabulary does not have.
  void encode(std::string_view text, std::vector<int32_t>& ids);

 private:
  struct CachedWord {
    uint32_t begin = 0, count = 0;  ///< in cached_ids_
  };
  void encode_valid(std::string_view text);
  void encode_normalized(std::string_view text);
  void encode_stage(size_t stage, std::string_view piece);
  void encode_words(size_t stage, std::string_view piece);
  void encode_word(std::string_view word);
  void merge(std::string_view word);
  void remember(std::string_view word, size_t first_id);

  const Tokenizer& tokenizer_;
  std::vector<Matcher> matchers_;  ///< one per stage
  std::vector<int32_t>* ids_ = nullptr;
  MergeScratch scratch_;
  std::vector<int32_t> symbols_;
  TextMap<CachedWord> cache_;
  std::vector<int32_t> cached_ids_;
};

/// Encodes texts on the process's threads (core/parallel.h).
class ParallelEncoder {
 public:
  explicit ParallelEncoder(const Tokenizer& tokenizer);
  /// ids[i] becomes the ids of texts[i]. Throws what the first text that cannot be encoded throws.
  void encode(std::span<const std::string> texts, std::vector<std::vector<int32_t>>& ids);

 private:
  std::vector<TokenEncoder> encoders_;
};

}  // namespace foresail
