// A tokenizer.json read, refused, and used: merges, added tokens, cuts, decoding.
#include "runtime/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/philox.h"
#include "runtime/tokenizer/encoder.h"
#include "runtime/tokenizer/unicode.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/tokenizer/fixture.h"

namespace foresail {
namespace {

using testing::encode;
using testing::small_tokenizer;
using Ids = std::vector<int32_t>;

Tokenizer small(const std::string& change = "{}") { return tokenizer_from_json(small_tokenizer(change), "small"); }

// Ids of the small tokenizer: bytes in GPT-2's order, then its words.
constexpr int32_t kA = 'a' - '!', kB = 'b' - '!', kC = 'c' - '!', kAb = 256, kAbc = 257, kBc = 258, kSpace = 220,
                  kSpaceA = 259, kEnd = 260;

std::string refusal(const std::string& text) {
  try {
    tokenizer_from_json(text, "t.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input) << error.what();
    return error.what();
  }
  return "";
}

TEST(Tokenizer, MergesTheLowestRankFirstAndThenFromTheLeft) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(encode(tokenizer, "abc"), (Ids{kAbc}));  // "b c" before "a b", then "a bc"
  EXPECT_EQ(encode(tokenizer, "ab"), (Ids{kAb}));
  EXPECT_EQ(encode(tokenizer, "bcbc"), (Ids{kBc, kBc}));
  EXPECT_EQ(encode(tokenizer, "cab"), (Ids{kC, kAb}));
  EXPECT_EQ(encode(tokenizer, " abc"), (Ids{kSpace, kAbc}));
  const Tokenizer other = small(R"({"model": {"merges": ["a b", "b c", "a bc"]}})");
  EXPECT_EQ(encode(other, "abc"), (Ids{kAb, kC}));
  const Tokenizer twice = small(R"({"model": {"merges": ["b c", "a b", "b c"]}})");
  EXPECT_EQ(encode(twice, "abc"), (Ids{kAb, kC}));  // the later rank counts
}

TEST(Tokenizer, BothSpellingsOfMergesAreTheSame) {
  const Tokenizer pairs = small(R"({"model": {"merges": [["b","c"],["a","b"],["a","bc"],["\u0120","a"]]}})");
  for (const char* text : {"abc abab cab", " a  a bc"}) EXPECT_EQ(encode(pairs, text), encode(small(), text));
  const Tokenizer headed = small(R"({"model": {"merges": ["#version: 0.2", "b c", "a b", "a bc"]}})");
  EXPECT_EQ(encode(headed, "abc"), (Ids{kAbc}));
}

TEST(Tokenizer, IgnoreMergesTakesWholeWordsOfTheVocabulary) {
  const std::string only_ab = R"({"model": {"merges": ["a b"], "ignore_merges": )";
  EXPECT_EQ(encode(small(only_ab + "false}}"), "abc"), (Ids{kAb, kC}));
  EXPECT_EQ(encode(small(only_ab + "true}}"), "abc"), (Ids{kAbc}));
  EXPECT_EQ(encode(small(only_ab + "true}}"), "abcb"), (Ids{kAb, kC, kB}));
}

TEST(Tokenizer, LongWordsMergeAsShortOnesDo) {
  const Tokenizer tokenizer = small();
  std::string word;
  Ids expected;
  for (int i = 0; i < 100'000; ++i) {
    word += "abc";
    expected.push_back(kAbc);
  }
  EXPECT_EQ(encode(tokenizer, word), expected);
}

TEST(Tokenizer, AddedTokensAreFoundLeftmostThenLongest) {
  const Tokenizer tokenizer = small(R"({"added_tokens": [
      {"id": 260, "content": "<a>", "special": true}, {"id": 261, "content": "<a><b>", "special": true},
      {"id": 262, "content": "a><", "special": true}]})");
  EXPECT_EQ(encode(tokenizer, "<a><b>"), (Ids{261}));
  EXPECT_EQ(encode(tokenizer, "<a><a>a"), (Ids{260, 260, kA}));
  EXPECT_EQ(encode(tokenizer, "a><b"), (Ids{262, kB}));
  EXPECT_EQ(decode(tokenizer, Ids{261, 260, -1, 999}), "<a><b><a>");
  EXPECT_TRUE(tokenizer.special[261]);
}

TEST(Tokenizer, AddedTokensTakeWhiteSpaceAlong) {
  const Tokenizer tokenizer = small(R"({"added_tokens": [
      {"id": 260, "content": "<l>", "lstrip": true}, {"id": 261, "content": "<r>", "rstrip": true}]})");
  EXPECT_EQ(encode(tokenizer, "a \t<l>a"), (Ids{kA, 260, kA}));
  EXPECT_EQ(encode(tokenizer, "a<r>\u3000\n<l> a"), (Ids{kA, 261, 260, kSpaceA}));
}

TEST(Tokenizer, AddedTokensThatAreNormalizedAreSearchedInTheNormalForm) {
  const std::string token =
      R"({"normalizer": {"type": "NFC"}, "added_tokens": [{"id": 260, "content": "\u014d", "normalized": )";
  EXPECT_EQ(encode(small(token + "true}]}"), "ao\u0304"), (Ids{kA, 260}));
  EXPECT_EQ(encode(small(token + "true}]}"), "a\u014d"), (Ids{kA, 260}));
  EXPECT_NE(encode(small(token + "false}]}"), "ao\u0304").back(), 260);
  EXPECT_EQ(encode(small(token + "false}]}"), "a\u014d"), (Ids{kA, 260}));
}

TEST(Tokenizer, PrefixSpaceIsAddedToEveryPiece) {
  const Tokenizer tokenizer = small(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}})");
  EXPECT_EQ(encode(tokenizer, "a<end>a a"), (Ids{kSpaceA, kEnd, kSpaceA, kSpaceA}));
  const Tokenizer plain =
      small(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}})");
  EXPECT_EQ(encode(plain, "ab"), (Ids{kSpace, kAb}));
}

TEST(Tokenizer, RefusesWhatItCannotHonour) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"model": {"type": "WordPiece"}})", "model.type"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout"},
      {R"({"model": {"byte_fallback": true}})", "model.byte_fallback"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})", "model.end_of_word_suffix"},
      {R"({"model": {"continuing_subword_prefix": "##"}})", "model.continuing_subword_prefix"},
      {R"({"model": {"new_option": 1}})", "model.new_option"},
      {R"({"model": {"vocab": {"a": null}}})", "0x61"},
      {R"({"model": {"vocab": {"x1": 3}}})", "id 3 is given twice"},
      {R"({"model": {"vocab": {"x1": -1}}})", "model.vocab"},
      {R"({"model": {"vocab": {"x1": 4000000}}})", "model.vocab"},
      {R"({"model": {"vocab": 1}})", "model.vocab"},
      {R"({"model": {"merges": ["a  b"]}})", "neither"},
      {R"({"model": {"merges": [["a"]]}})", "neither"},
      {R"({"model": {"merges": ["a zz"]}})", "'zz', which is not in the vocabulary"},
      {R"({"model": {"merges": ["c a"]}})", "'ca', which is not in the vocabulary"},
      {R"({"model": {"merges": "a b"}})", "model.merges"},
      {R"({"normalizer": {"type": "Lowercase"}})", "Lowercase"},
      {R"({"pre_tokenizer": {"type": "Metaspace"}})", "Metaspace"},
      {R"({"pre_tokenizer": null})", "pre_tokenizer"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}})", "has no ByteLevel"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]}})",
       "comes after ByteLevel"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated"}})", "'\\w'"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd"}})", "'Odd'"},
      {R"({"decoder": {"type": "Metaspace"}})", "decoder"},
      {R"({"decoder": null})", "decoder"},
      {R"({"added_tokens": [{"id": 300, "content": "<x>"}]})", "gives this token 260"},
      {R"({"added_tokens": [{"id": 260, "content": "ab"}]})", "gives this token 256"},
      {R"({"added_tokens": [{"id": 260, "content": ""}]})", "is empty"},
      {R"({"added_tokens": [{"id": 260, "content": "<x>", "single_word": true}]})", "single_word"},
      {R"({"added_tokens": [{"id": 260, "content": "<x>"}, {"id": 261, "content": "<x>"}]})", "earlier token"},
      {R"({"added_tokens": [{"id": 260, "content": "<x>", "rstrip": true}, {"id": 261, "content": " y"}]})",
       "white space"},
      {R"({"normalizer": {"type": "NFC"}, "added_tokens": [{"id": 260, "content": "\u014d"},
           {"id": 261, "content": "o\u0304"}]})",
       "normal form"},
  };
  for (const auto& [change, part] : refused) {
    const std::string message = refusal(small_tokenizer(change));
    EXPECT_NE(message.find(part), std::string::npos) << change << ": " << message;
    EXPECT_EQ(message.rfind("t.json", 0), 0u) << message;
  }
  EXPECT_NE(refusal("{").find("t.json"), std::string::npos);
  EXPECT_EQ(refusal(small_tokenizer()), "");
}

TEST(Tokenizer, TheEndOfDocumentIsFoundOrAskedFor) {
  TemporaryFolder folder;
  const auto path = folder.path() / "tokenizer.json", config = folder.path() / "tokenizer_config.json";
  const Tokenizer one = small();
  EXPECT_EQ(end_of_document(one, path, ""), kEnd);
  EXPECT_EQ(end_of_document(one, path, "<end>"), kEnd);
  EXPECT_EQ(end_of_document(one, path, "7"), 7);
  EXPECT_THROW(end_of_document(one, path, "261"), Error);
  EXPECT_THROW(end_of_document(one, path, "<no>"), Error);
  const Tokenizer two = small(R"({"added_tokens": [{"id": 260, "content": "<x>", "special": true},
                                                  {"id": 261, "content": "<y>", "special": true}]})");
  EXPECT_THROW(end_of_document(two, path, ""), Error);
  std::ofstream(config) << R"({"eos_token": {"content": "<y>"}})";
  EXPECT_EQ(end_of_document(two, path, ""), 261);
  std::ofstream(config) << R"({"eos_token": "<x>", "bos_token": null})";
  EXPECT_EQ(end_of_document(two, path, ""), 260);
  EXPECT_EQ(end_of_document(two, path, "<y>"), 261);
}

std::string random_bytes(uint64_t seed, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random_bits(seed, 7, i);
    // Half ASCII, so that words and stray bytes meet.
    text += static_cast<char>(bits % 2 == 0 ? 0x20 + bits / 2 % 96 : bits / 2 % 256);
  }
  return text;
}

TEST(Tokenizer, DecodingReturnsEveryText) {
  for (const char* name : {"gpt2", "llama3", "deepseek", "o200k"}) {
    const Tokenizer& tokenizer = testing::tokenizer(name);
    for (const std::string& text : testing::mixed_text()) ASSERT_EQ(decode(tokenizer, encode(tokenizer, text)), text);
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const std::string bytes = random_bytes(seed, 1 + seed * 7 % 300);
      ASSERT_EQ(decode(tokenizer, encode(tokenizer, bytes)), bytes) << name << " " << seed;
    }
  }
  const Tokenizer& qwen = testing::tokenizer("qwen");
  for (const std::string& text : testing::mixed_text()) ASSERT_EQ(decode(qwen, encode(qwen, text)), to_nfc(text));
}

TEST(Tokenizer, ABytesWithoutATokenIsRefusedOnlyWhereItOccurs) {
  const Tokenizer tokenizer = small(R"({"model": {"vocab": {"\u00ff": null}}, "added_tokens": []})");
  EXPECT_EQ(decode(tokenizer, encode(tokenizer, "\xFE")), "\xFE");
  EXPECT_THROW(encode(tokenizer, "a\xFF"), Error);
}

TEST(Tokenizer, StreamedTextIsWholeCharacters) {
  const Tokenizer& tokenizer = testing::tokenizer("gpt2");
  std::string text = "caf\u00e9 \U0001f468\u200d\U0001f469 \u0e2a\u0e27\u0e31 \u4e2d";
  StreamDecoder decoder(tokenizer);
  std::string said;
  for (const int32_t id : encode(tokenizer, text)) {
    const std::string piece = decoder.add(id);
    EXPECT_EQ(valid_utf8_prefix(piece), piece.size());
    said += piece;
  }
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(said, text);
  text = "a\xFF\xE4\xB8";  // what no id completes comes at the end
  said.clear();
  for (const int32_t id : encode(tokenizer, text)) said += decoder.add(id);
  EXPECT_EQ(said, "a\xFF");
  EXPECT_EQ(decoder.finish(), "\xE4\xB8");
}

// The cuts that documents are encoded in parallel at, all at once, against the document as a whole.
TEST(Tokenizer, CutsChangeNoIds) {
  for (const std::string& name : testing::tokenizer_names()) {
    const Tokenizer& tokenizer = testing::tokenizer(name);
    TokenEncoder encoder(tokenizer);
    int64_t cuts = 0;
    for (const std::string& text : testing::mixed_text()) {
      Ids whole, parts;
      encoder.encode(text, whole);
      size_t begin = 0;
      for (size_t cut = find_cut(tokenizer, text, 1); begin < text.size(); cut = find_cut(tokenizer, text, cut + 1)) {
        const size_t end = std::min(cut, text.size());
        encoder.encode(std::string_view(text).substr(begin, end - begin), parts);
        begin = end;
        ++cuts;
        if (cut == std::string::npos) break;
      }
      ASSERT_EQ(parts, whole) << name << ": " << text;
    }
    if (name != "behaviors" && name != "strips") {
      EXPECT_GT(cuts, 20'000) << name;
    }
  }
}

TEST(Tokenizer, CutsAvoidAddedTokensAndOddPatterns) {
  EXPECT_TRUE(may_cut_between(small(), 'd', ' '));
  EXPECT_TRUE(may_cut_between(small(), 'd', '\n'));
  EXPECT_FALSE(may_cut_between(small(), ' ', 'd'));
  EXPECT_FALSE(may_cut_between(small(), '.', '\n'));
  const Tokenizer tokens = small(R"({"added_tokens": [{"id": 260, "content": "<the end>"},
                                                      {"id": 261, "content": "<q", "rstrip": true}]})");
  EXPECT_FALSE(may_cut_between(tokens, 'e', ' '));
  EXPECT_TRUE(may_cut_between(tokens, 'e', '\n'));
  EXPECT_FALSE(may_cut_between(tokens, 'q', '\n'));
  const auto split = [](const std::string& regex, const std::string& behavior) {
    return small(
        R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ")" + regex +
        R"("}, "behavior": ")" + behavior +
        R"("}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}})");
  };
  EXPECT_TRUE(may_cut_between(split("\\\\S+|\\\\s+", "Isolated"), 'e', '\n'));
  EXPECT_FALSE(may_cut_between(split("\\\\S+|\\\\s+", "MergedWithNext"), 'e', '\n'));
  EXPECT_FALSE(may_cut_between(split("\\\\S+|\\\\s+", "Contiguous"), 'e', '\n'));
  EXPECT_FALSE(may_cut_between(split("\\\\S+", "Isolated"), 'e', '\n'));  // line ends join what lies between
  EXPECT_FALSE(
      may_cut_between(small(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}})"), 'e', '\n'));
}

TEST(Tokenizer, ThreadsGiveTheIdsOfOne) {
  const Tokenizer& tokenizer = testing::tokenizer("qwen");
  std::vector<Ids> together;
  ParallelEncoder(tokenizer).encode(testing::mixed_text(), together);
  for (size_t d = 0; d < together.size(); ++d) ASSERT_EQ(together[d], encode(tokenizer, testing::mixed_text()[d]));
  const Tokenizer lacking = small(R"({"model": {"vocab": {"\u00ff": null}}, "added_tokens": []})");
  const std::vector<std::string> texts = {"a", "\xFF", "b"};
  EXPECT_THROW(ParallelEncoder(lacking).encode(texts, together), Error);
}

}  // namespace
}  // namespace foresail
