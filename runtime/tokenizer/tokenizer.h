// A byte-level BPE tokenizer as Hugging Face's tokenizer.json describes it (GPT-2, Llama 3, Qwen and their like): what is
// in the file, ready for use. Whatever cannot be honoured exactly is refused when it is loaded.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/merge_table.h"
#include "runtime/tokenizer/pattern.h"

namespace foresail {

/// Name of this kind of tokenizer in dataset.json and checkpoints.
inline constexpr const char* kByteLevelBpe = "byte-level-bpe";

/// What becomes of a match between two stretches of text.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// One step of cutting text into words.
struct SplitStage {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;        ///< what does not match counts as a match
  bool prefix_space = false;  ///< a piece that does not begin with a space gets one first
};

/// Hash for look-ups by string_view.
struct TextHash {
  using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard library looks for this name
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

/// Immutable once loaded; shared by threads.
struct Tokenizer {
  std::string digest;          ///< of the file (core/digest.h)
  int64_t vocabulary = 0;      ///< ids are below it; some may be unused
  bool nfc = false;            ///< text is brought to Normalization Form C
  bool prefix_space = false;   ///< a piece that does not begin with a space gets one after the last stage
  bool ignore_merges = false;  ///< a word that is in the vocabulary is that token, whatever the merges say
  std::vector<SplitStage> stages;
  std::array<int32_t, 256> byte_ids{};  ///< -1: none (only for bytes that UTF-8 never has)
  MergeTable merges{0};
  TextMap<int32_t> words;  ///< the vocabulary by bytes; empty unless ignore_merges
  std::vector<AddedToken> added;
  AddedTokenFinder raw_added, normalized_added;
  std::string bytes;                     ///< of all tokens, back to back
  std::vector<uint32_t> begins;          ///< place of an id's bytes; vocabulary + 1 of them
  std::vector<bool> special;             ///< by id
  std::array<std::bitset<128>, 2> cuts;  ///< see may_cut_between

  /// The bytes of an id; nothing for ids that are no token.
  std::string_view bytes_of(int32_t id) const;
  /// The id of an added token. Nothing if there is none of this content.
  std::optional<int32_t> added_id(std::string_view content) const;
};

/// Throws bad_input naming the file and the field.
Tokenizer load_tokenizer(const std::filesystem::path& path);
Tokenizer tokenizer_from_json(std::string_view text, const std::string& source);
/// A loaded file must not be larger.
inline constexpr int64_t kTokenizerFileLimitBytes = int64_t{256} << 20;

/// The id that ends documents: `wanted` (an added token's text, or an id) if it is given; otherwise the eos_token of a
/// tokenizer_config.json beside the tokenizer, or its only special token. Throws bad_input if that does not decide it.
int32_t end_of_document(const Tokenizer& tokenizer, const std::filesystem::path& path, const std::string& wanted);

/// True if encoding a text in two parts, cut between these characters, is proved to give the same ids. Only some ASCII
/// characters before a line end or a space are known to; found from the patterns' follow sets when the file is loaded.
bool may_cut_between(const Tokenizer& tokenizer, char before, char after);
/// The first place at or after `from`, inside the text, where it may be cut; npos if there is none.
size_t find_cut(const Tokenizer& tokenizer, std::string_view text, size_t from);
/// Fills tokenizer.cuts. Part of loading.
void find_cuts(Tokenizer& tokenizer);

/// The bytes of ids one after the other. Ids that are no token have none.
std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> ids);

/// Turns ids into text as they come: bytes of a character that is not complete wait for the rest.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// The text that is complete after this id.
  std::string add(int32_t id);
  /// What is left: bytes that never became a character.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string waiting_;
};

}  // namespace foresail
