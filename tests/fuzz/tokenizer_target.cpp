#include "core/json.h"
#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/encoder.h"
#include "tests/fuzz/targets.h"

namespace foresail {
namespace {

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// All bytes, two merges, two added tokens; the bytes come last so that damage mostly meets the rest.
Json example_with(const Json& pre_tokenizer, const Json& merges) {
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  Json vocabulary = {{"ab", 256}, {"abc", 257}};
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[std::string(byte_character(static_cast<unsigned char>(byte)))] = byte;
  return {{"added_tokens",
           {{{"id", 258}, {"content", "<end>"}, {"special", true}, {"rstrip", true}},
            {{"id", 259}, {"content", "caf\u00e9"}, {"normalized", true}, {"lstrip", true}}}},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {pre_tokenizer, byte_level}}}},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"ignore_merges", true}, {"merges", merges}, {"vocab", vocabulary}}}};
}

std::vector<std::string> examples() {
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kLlama3}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  return {example_with(split, Json::parse(R"(["a b", "ab c"])")).dump(),
          example_with(digits, Json::parse(R"([["a", "b"], ["ab", "c"]])")).dump()};
}

/// What prepare and sample do with it, on text with something of everything.
void use_tokenizer(const std::string& content) {
  const Tokenizer tokenizer = tokenizer_from_json(content, "input");
  const std::string text = "abc ABC'S 12345\r\n\n  caf\u0065\u0301 \u4e2d\u6587<end> \xFF\xE4 \U0001f600 <en";
  std::vector<int32_t> ids;
  TokenEncoder(tokenizer).encode(text, ids);
  StreamDecoder decoder(tokenizer);
  for (const int32_t id : ids) decoder.add(id);
  find_cut(tokenizer, text, 1);
  end_of_document(tokenizer, "nowhere/tokenizer.json", "");
}

}  // namespace

FuzzTarget tokenizer_target() { return {"tokenizer.json", Content::json, examples(), use_tokenizer}; }

}  // namespace foresail
