#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/file.h"
#include "runtime/tokenizer/unicode.h"

namespace foresail {
namespace {

constexpr char kCutBefore[] = {'\n', ' '};

bool keeps_matches_apart(const SplitStage& stage) {
  return !stage.invert && (stage.behavior == SplitBehavior::isolated || stage.behavior == SplitBehavior::removed);
}

/// Some stage certainly cuts there, and none before it looks across.
bool stages_cut_between(const std::vector<SplitStage>& stages, char before, char after) {
  for (const SplitStage& stage : stages) {
    if (stage.prefix_space || !keeps_matches_apart(stage)) return false;
    const CutProperties cut = stage.pattern.cut_between(before, after);
    if (!cut.never_inside) return false;
    if (cut.always_starts) return true;
  }
  return false;
}

/// No added token lies across, or reaches across for white space.
bool added_tokens_allow(const std::vector<AddedToken>& tokens, char before, char after) {
  const char pair[] = {before, after};
  return std::none_of(tokens.begin(), tokens.end(), [&](const AddedToken& token) {
    if (token.right_strip && token.content.back() == before) return true;
    return token.content.find(std::string_view(pair, 2)) != std::string::npos;
  });
}

bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

}  // namespace

Tokenizer load_tokenizer(const std::filesystem::path& path) {
  return tokenizer_from_json(read_file(path, kTokenizerFileLimitBytes), path.string());
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  if (id < 0 || id >= vocabulary) return {};
  const size_t begin = begins[static_cast<size_t>(id)];
  return std::string_view(bytes).substr(begin, begins[static_cast<size_t>(id) + 1] - begin);
}

std::optional<int32_t> Tokenizer::added_id(std::string_view content) const {
  for (const AddedToken& token : added) {
    if (token.content == content) return token.id;
  }
  return std::nullopt;
}

// Letters and digits are no white space, so no token's left strip passes them; line ends and spaces begin no
// composition, so Normalization Form C of the parts is that of the whole.
void find_cuts(Tokenizer& tokenizer) {
  if (tokenizer.prefix_space) return;
  for (size_t i = 0; i < std::size(kCutBefore); ++i) {
    for (char before = 0; before <= 'z'; ++before) {
      tokenizer.cuts[i][static_cast<size_t>(before)] = is_letter_or_digit(before) &&
                                                       added_tokens_allow(tokenizer.added, before, kCutBefore[i]) &&
                                                       stages_cut_between(tokenizer.stages, before, kCutBefore[i]);
    }
  }
}

bool may_cut_between(const Tokenizer& tokenizer, char before, char after) {
  const auto ascii = static_cast<unsigned char>(before);
  if (ascii >= 128) return false;
  for (size_t i = 0; i < std::size(kCutBefore); ++i) {
    if (after == kCutBefore[i]) return tokenizer.cuts[i][ascii];
  }
  return false;
}

size_t find_cut(const Tokenizer& tokenizer, std::string_view text, size_t from) {
  for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at) {
    if (may_cut_between(tokenizer, text[at - 1], text[at])) return at;
  }
  return std::string_view::npos;
}

std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += tokenizer.bytes_of(id);
  return text;
}

std::string StreamDecoder::add(int32_t id) {
  waiting_ += tokenizer_.bytes_of(id);
  size_t complete = waiting_.size();
  for (size_t tail = 1; tail <= std::min<size_t>(3, waiting_.size()); ++tail) {
    const std::string_view end = std::string_view(waiting_).substr(waiting_.size() - tail);
    if (is_incomplete_character(end)) complete = waiting_.size() - tail;
  }
  std::string text = waiting_.substr(0, complete);
  waiting_.erase(0, complete);
  return text;
}

std::string StreamDecoder::finish() { return std::exchange(waiting_, {}); }

}  // namespace foresail
