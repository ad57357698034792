#include <algorithm>

#include <fmt/format.h>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/unicode.h"

namespace foresail {
namespace {

constexpr int64_t kMostIds = 4'000'000;
constexpr size_t kMostStages = 32;

// What ByteLevel cuts with unless use_regex is false (GPT-2's encoder.py).
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr const char* kUseAnother = "use a byte-level BPE tokenizer.json, or --tokenizer bytes";

[[noreturn]] void refuse_type(const JsonObject& object, const std::string& part, const std::string& known) {
  object.fail("type",
              fmt::format("the {} '{}' is not supported; known are {}", part, object.require_string("type"), known),
              kUseAnother);
}

std::string type_of(const JsonObject& object) { return object.require_string("type"); }

/// Ids by the token's text as the file writes it.
using Vocabulary = TextMap<int32_t>;

Vocabulary read_vocabulary(const JsonObject& model) {
  const JsonObject entries = model.require_object("vocab");
  Vocabulary vocabulary;
  vocabulary.reserve(entries.raw().size());
  std::vector<bool> taken;
  for (const auto& [token, value] : entries.raw().items()) {
    if (!value.is_number_integer() || value < 0 || value >= kMostIds) {
      entries.fail(token, fmt::format("its id is not a whole number from 0 to {}", kMostIds - 1), "correct the file");
    }
    const auto id = value.get<int32_t>();
    if (static_cast<size_t>(id) >= taken.size()) taken.resize(static_cast<size_t>(id) + 1);
    if (taken[static_cast<size_t>(id)])
      entries.fail(token, fmt::format("id {} is given twice", id), "correct the file");
    taken[static_cast<size_t>(id)] = true;
    vocabulary.emplace(token, id);
  }
  return vocabulary;
}

/// The two sides of a merge, written "a b" or ["a", "b"].
std::pair<std::string, std::string> sides_of(const JsonObject& model, const Json& merge, size_t number) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  model.fail("merges", fmt::format("number {} is neither \"a b\" nor [\"a\", \"b\"]", number), "correct the file");
}

MergeTable read_merges(const JsonObject& model, const Vocabulary& vocabulary) {
  const auto found = model.raw().find("merges");
  if (found == model.raw().end() || !found->is_array()) model.fail("merges", "is not an array", "correct the file");
  MergeTable table(found->size());
  uint32_t rank = 0;
  for (const Json& merge : *found) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = sides_of(model, merge, rank);
    const auto id_of = [&](const std::string& token) {
      const auto entry = vocabulary.find(token);
      if (entry != vocabulary.end()) return entry->second;
      model.fail("merges", fmt::format("number {} needs '{}', which is not in the vocabulary", rank, token),
                 "correct the file");
    };
    const int32_t left_id = id_of(left), right_id = id_of(right);
    table.insert(left_id, right_id, {rank, id_of(left + right)});
    ++rank;
  }
  return table;
}

/// Options of the model that would change its ids.
void refuse_unusual_model(const JsonObject& model) {
  model.refuse_unknown_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                             "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("dropout") && model.get_number("dropout", 0, 0, 1) != 0) {
    model.fail("dropout", "ids would be drawn at random", "set it to null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.get_string(key, "").empty()) model.fail(key, "byte-level BPE has none", kUseAnother);
  }
  if (model.get_bool("byte_fallback", false)) model.fail("byte_fallback", "byte-level BPE has none", kUseAnother);
}

void read_byte_ids(Tokenizer& tokenizer, const JsonObject& model, const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary.find(byte_character(static_cast<unsigned char>(byte)));
    tokenizer.byte_ids[static_cast<size_t>(byte)] = found == vocabulary.end() ? -1 : found->second;
    const bool in_utf8 = byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4);
    if (found != vocabulary.end() || !in_utf8) continue;
    model.fail("vocab", fmt::format("has no token for the byte 0x{:02x}, so some texts cannot be encoded", byte),
               kUseAnother);
  }
}

void read_words(Tokenizer& tokenizer, const Vocabulary& vocabulary) {
  for (const auto& [token, id] : vocabulary) {
    if (auto bytes = bytes_of_token(token)) tokenizer.words.emplace(std::move(*bytes), id);
  }
}

AddedToken read_added_token(const JsonObject& entry) {
  AddedToken token;
  token.id = static_cast<int32_t>(entry.require_int("id", 0, kMostIds - 1));
  token.content = entry.require_string("content");
  token.left_strip = entry.get_bool("lstrip", false);
  token.right_strip = entry.get_bool("rstrip", false);
  token.special = entry.get_bool("special", false);
  token.normalized = entry.get_bool("normalized", !token.special);
  if (token.content.empty()) entry.fail("content", "is empty", "remove this token");
  if (entry.get_bool("single_word", false)) {
    entry.fail("single_word", "tokens that must be words of their own are not supported", "set it to false");
  }
  return token;
}

/// The id that Hugging Face's loader gives: the vocabulary's, or the next one after all others.
int64_t expected_id(const AddedToken& token, const Vocabulary& vocabulary, int64_t largest_added) {
  const auto known = vocabulary.find(token.content);
  if (known != vocabulary.end()) return known->second;
  const auto size = static_cast<int64_t>(vocabulary.size());
  return largest_added >= size ? largest_added + 1 : size;
}

void read_added_tokens(Tokenizer& tokenizer, const JsonObject& root, const Vocabulary& vocabulary) {
  int64_t largest = -1;
  bool strips = false, begins_with_space = false;
  for (const JsonObject& entry : root.get_objects("added_tokens")) {
    AddedToken token = read_added_token(entry);
    if (tokenizer.added_id(token.content))
      entry.fail("content", "is the text of an earlier token", "remove one of them");
    const int64_t expected = expected_id(token, vocabulary, largest);
    if (token.id != expected) {
      entry.fail("id", fmt::format("is {}, but Hugging Face's loader gives this token {}", token.id, expected),
                 "correct the file");
    }
    largest = std::max<int64_t>(largest, token.id);
    strips |= token.right_strip;
    begins_with_space |= leading_white_space(token.content) > 0;
    tokenizer.added.push_back(std::move(token));
  }
  if (strips && begins_with_space) {
    root.fail("added_tokens", "one takes the white space after it, another begins with white space",
              "set rstrip to false or remove one of them");
  }
}

/// Raw tokens are searched first; the others in what lies between, in its normal form.
void make_finders(Tokenizer& tokenizer, const JsonObject& root) {
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : tokenizer.added) {
    if (token.normalized && tokenizer.nfc) token.content = to_nfc(token.content);
    auto& list = token.normalized ? normalized : raw;
    for (const AddedToken& other : list) {
      if (other.content == token.content)
        root.fail("added_tokens", "two have the same normal form", "remove one of them");
    }
    list.push_back(std::move(token));
  }
  tokenizer.raw_added = AddedTokenFinder(std::move(raw));
  tokenizer.normalized_added = AddedTokenFinder(std::move(normalized));
}

void read_normalizer(Tokenizer& tokenizer, const JsonObject& normalizer) {
  const std::string type = type_of(normalizer);
  if (type == "NFC") {
    tokenizer.nfc = true;
  } else if (type == "Sequence") {
    for (const JsonObject& part : normalizer.get_objects("normalizers")) read_normalizer(tokenizer, part);
  } else {
    refuse_type(normalizer, "normalizer", "NFC, Sequence of it, and null");
  }
}

SplitBehavior behavior_of(const JsonObject& split) {
  const std::string name = split.require_string("behavior");
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  split.fail("behavior", fmt::format("'{}' is not a behavior", name), "correct the file");
}

SplitStage read_split(const JsonObject& split) {
  const JsonObject pattern = split.require_object("pattern");
  const std::string key = pattern.has("Regex") ? "Regex" : "String";
  const std::string text = pattern.require_string(key);
  if (text.empty()) pattern.fail(key, "is empty", "correct the file");
  const std::string place = split.source() + ": field '" + pattern.path_of(key) + "'";
  return {.pattern = key == "Regex" ? Pattern::from_regex(text, place) : Pattern::from_literal(text, place),
          .behavior = behavior_of(split),
          .invert = split.get_bool("invert", false)};
}

void read_pre_tokenizer(Tokenizer& tokenizer, const JsonObject& part, bool& byte_level) {
  const std::string type = type_of(part);
  if (byte_level) part.fail("type", fmt::format("'{}' comes after ByteLevel", type), kUseAnother);
  if (tokenizer.stages.size() >= kMostStages) part.fail("type", "there are more than 32 steps", kUseAnother);
  const std::string place = part.source() + ": field '" + part.path_of("type") + "'";
  if (type == "Sequence") {
    for (const JsonObject& step : part.get_objects("pretokenizers")) read_pre_tokenizer(tokenizer, step, byte_level);
  } else if (type == "Split") {
    tokenizer.stages.push_back(read_split(part));
  } else if (type == "Digits") {
    const bool single = part.get_bool("individual_digits", false);
    tokenizer.stages.push_back({.pattern = Pattern::from_regex(R"(\p{N})", place),
                                .behavior = single ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "ByteLevel") {
    byte_level = true;
    const bool prefix = part.get_bool("add_prefix_space", true);
    if (part.get_bool("use_regex", true)) {
      tokenizer.stages.push_back({.pattern = Pattern::from_regex(kGpt2Pattern, place), .prefix_space = prefix});
    } else {
      tokenizer.prefix_space = prefix;
    }
  } else {
    refuse_type(part, "pre_tokenizer", "ByteLevel, Split, Digits and Sequence of them");
  }
}

bool decodes_bytes(const JsonObject& decoder) {
  const std::string type = type_of(decoder);
  if (type == "ByteLevel") return true;
  if (type != "Sequence") return false;
  const auto parts = decoder.get_objects("decoders");
  return parts.size() == 1 && decodes_bytes(parts.front());
}

/// The bytes of every id, for decoding. Added tokens stand for their text as it is.
void lay_out_bytes(Tokenizer& tokenizer, const Vocabulary& vocabulary) {
  int64_t largest = -1;
  for (const auto& [token, id] : vocabulary) largest = std::max<int64_t>(largest, id);
  for (const AddedToken& token : tokenizer.added) largest = std::max<int64_t>(largest, token.id);
  tokenizer.vocabulary = largest + 1;
  std::vector<std::string> texts(static_cast<size_t>(tokenizer.vocabulary));
  for (const auto& [token, id] : vocabulary) texts[static_cast<size_t>(id)] = bytes_of_token(token).value_or(token);
  tokenizer.special.resize(texts.size());
  for (const AddedToken& token : tokenizer.added) {
    texts[static_cast<size_t>(token.id)] = token.content;
    tokenizer.special[static_cast<size_t>(token.id)] = token.special;
  }
  for (const std::string& text : texts) {
    tokenizer.begins.push_back(static_cast<uint32_t>(tokenizer.bytes.size()));
    tokenizer.bytes += text;
  }
  tokenizer.begins.push_back(static_cast<uint32_t>(tokenizer.bytes.size()));
}

/// The eos_token of a tokenizer_config.json beside the tokenizer; empty if there is none.
std::string configured_end(const std::filesystem::path& tokenizer_path) {
  const auto path = tokenizer_path.parent_path() / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return "";
  const Json root = read_json_file(path);
  const JsonObject object(root, path.string());
  if (!object.has("eos_token")) return "";
  if (root["eos_token"].is_object()) return object.require_object("eos_token").require_string("content");
  return object.require_string("eos_token");
}

}  // namespace

Tokenizer tokenizer_from_json(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const JsonObject root(document, source);
  const JsonObject model = root.require_object("model");
  if (model.get_string("type", "BPE") != "BPE") refuse_type(model, "model", "BPE");
  refuse_unusual_model(model);

  Tokenizer tokenizer;
  tokenizer.digest = digest_of(text);
  tokenizer.ignore_merges = model.get_bool("ignore_merges", false);
  const Vocabulary vocabulary = read_vocabulary(model);
  read_byte_ids(tokenizer, model, vocabulary);
  tokenizer.merges = read_merges(model, vocabulary);
  if (tokenizer.ignore_merges) read_words(tokenizer, vocabulary);

  if (root.has("normalizer")) read_normalizer(tokenizer, root.require_object("normalizer"));
  bool byte_level = false;
  read_pre_tokenizer(tokenizer, root.require_object("pre_tokenizer"), byte_level);
  if (!byte_level) root.fail("pre_tokenizer", "has no ByteLevel", kUseAnother);
  if (!decodes_bytes(root.require_object("decoder"))) root.fail("decoder", "is not ByteLevel", kUseAnother);

  read_added_tokens(tokenizer, root, vocabulary);
  make_finders(tokenizer, root);
  lay_out_bytes(tokenizer, vocabulary);
  find_cuts(tokenizer);
  return tokenizer;
}

int32_t end_of_document(const Tokenizer& tokenizer, const std::filesystem::path& path, const std::string& wanted) {
  const bool digits =
      !wanted.empty() && wanted.size() <= 9 && wanted.find_first_not_of("0123456789") == std::string::npos;
  if (digits && std::stoll(wanted) < tokenizer.vocabulary) return static_cast<int32_t>(std::stoll(wanted));
  if (!wanted.empty()) {
    if (const auto id = tokenizer.added_id(wanted)) return *id;
    throw_bad_input("--end-of-document " + wanted, "is no added token and no id of " + path.string(),
                    "name one of its added tokens, such as <|endoftext|>");
  }
  const std::string configured = configured_end(path);
  if (const auto id = tokenizer.added_id(configured)) return *id;
  std::vector<int32_t> special;
  for (const AddedToken& token : tokenizer.added) {
    if (token.special) special.push_back(token.id);
  }
  if (special.size() == 1) return special.front();
  throw_bad_input(
      path.string(),
      fmt::format("it has {} special tokens, and no tokenizer_config.json says which ends a document", special.size()),
      "add --end-of-document TOKEN");
}

}  // namespace foresail
