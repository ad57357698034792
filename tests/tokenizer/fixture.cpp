#include "tests/tokenizer/fixture.h"

#include <zstd.h>

#include <map>
#include <sstream>

#include <fmt/format.h>

#include "core/file.h"
#include "core/json.h"
#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/encoder.h"
#include "runtime/tokenizer/unicode.h"

namespace foresail::testing {
namespace {

std::string fixture(const std::string& name) { return read_file(std::string(TEST_FOLDER) + "/fixtures/" + name); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string unpacked(const std::string& packed) {
  std::string text(ZSTD_getFrameContentSize(packed.data(), packed.size()), '\0');
  text.resize(ZSTD_decompress(text.data(), text.size(), packed.data(), packed.size()));
  return text;
}

/// GPT-2's order of the bytes: those that stand for themselves come first.
Json byte_vocabulary() {
  Json vocabulary = Json::object();
  for (const bool itself : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string character(byte_character(static_cast<unsigned char>(byte)));
      if ((code_point_at(character, 0).value == static_cast<uint32_t>(byte)) == itself) {
        vocabulary[character] = vocabulary.size();
      }
    }
  }
  return vocabulary;
}

/// xorshift32 (Marsaglia, 2003), as in text.mjs.
class Random {
 public:
  uint32_t below(uint32_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_ % bound;
  }

 private:
  uint32_t state_ = 2463534242;
};

std::string random_piece(Random& random, const std::vector<std::string>& pieces) {
  static const std::vector<std::string> spaces = {" ",    "  ",     "\n",   "\n\n", "\t",
                                                  "\r\n", "\u00a0", " \n ", "   ",  "\u3000"};
  static const std::vector<std::pair<uint32_t, uint32_t>> blocks = {
      {0x20, 95},    {0xa0, 96},    {0x370, 144},    {0x400, 256},    {0x590, 112},   {0x900, 128}, {0x1100, 256},
      {0x2000, 112}, {0x3040, 192}, {0x4e00, 20000}, {0xac00, 11000}, {0x1f300, 700}, {0x300, 112}};
  const uint32_t kind = random.below(100);
  if (kind < 70) return pieces[random.below(static_cast<uint32_t>(pieces.size()))];
  if (kind < 82) return spaces[random.below(static_cast<uint32_t>(spaces.size()))];
  if (kind < 86) return std::to_string(random.below(1000000000));
  const auto [first, count] = blocks[random.below(static_cast<uint32_t>(blocks.size()))];
  std::string text;
  for (uint32_t n = 1 + random.below(8); n > 0; --n) append_utf8(first + random.below(count), text);
  return text;
}

std::vector<std::string> make_mixed_text() {
  const auto pieces = Json::parse(fixture("pieces.json")).get<std::vector<std::string>>();
  Random random;
  std::vector<std::string> documents(1000);
  for (std::string& text : documents) {
    for (uint32_t n = 1 + random.below(60); n > 0; --n) {
      text += random_piece(random, pieces);
      if (random.below(3) == 0) text += ' ';
    }
  }
  return documents;
}

}  // namespace

std::string tokenizer_text(const std::string& name) {
  static const std::vector<std::string> merges = lines_of(unpacked(fixture("gpt2_merges.txt.zst")));
  Json file = Json::parse(fixture(name + ".json"));
  const bool pairs = file["model"]["merges"] == "pair";
  std::string vocabulary, list;
  const Json bytes = byte_vocabulary();
  for (const auto& [token, id] : bytes.items()) vocabulary += fmt::format("{}:{},", Json(token).dump(), id.dump());
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ');
    const std::string left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
    vocabulary += fmt::format("{}:{},", Json(left + right).dump(), 256 + i);
    list += pairs ? Json({left, right}).dump() : Json(merges[i]).dump();
    list += ',';
  }
  for (const auto& [token, id] : file["model"]["vocab"].items())
    vocabulary += fmt::format("{}:{},", Json(token).dump(), id.dump());
  vocabulary.pop_back();
  list.pop_back();
  // Written as text: an ordered Json object of 50,000 members would search all of them for each new one.
  file["model"]["vocab"] = "VOCABULARY";
  file["model"]["merges"] = "MERGES";
  std::string text = file.dump();
  text.replace(text.find("\"VOCABULARY\""), 12, "{" + vocabulary + "}");
  text.replace(text.find("\"MERGES\""), 8, "[" + list + "]");
  return text;
}

const Tokenizer& tokenizer(const std::string& name) {
  static std::map<std::string, Tokenizer> loaded;
  auto found = loaded.find(name);
  if (found == loaded.end()) found = loaded.emplace(name, tokenizer_from_json(tokenizer_text(name), name)).first;
  return found->second;
}

std::vector<std::string> tokenizer_names() {
  return {"gpt2", "llama3", "qwen", "deepseek", "o200k", "strips", "behaviors"};
}

std::string small_tokenizer(const std::string& change) {
  Json vocabulary = byte_vocabulary();
  for (const char* token : {"ab", "abc", "bc", "\u0120a"}) vocabulary[token] = vocabulary.size();
  const auto end = static_cast<int>(vocabulary.size());
  Json file = {{"version", "1.0"},
               {"added_tokens", {{{"id", end}, {"content", "<end>"}, {"special", true}}}},
               {"normalizer", nullptr},
               {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
               {"decoder", {{"type", "ByteLevel"}}},
               {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"b c", "a b", "a bc", "\u0120 a"}}}}};
  file.merge_patch(Json::parse(change));
  return file.dump();
}

const std::vector<std::string>& mixed_text() {
  static const std::vector<std::string> text = make_mixed_text();
  return text;
}

std::vector<PeerIds> peer_ids(const std::string& name) {
  std::vector<PeerIds> all;
  for (const std::string& line : lines_of(fixture(name + ".ids"))) {
    std::istringstream stream(line);
    PeerIds ids;
    stream >> ids.count >> std::hex >> ids.hash;
    all.push_back(ids);
  }
  return all;
}

PeerIds summary_of(const std::vector<int32_t>& ids) {
  PeerIds result{ids.size(), 2166136261};  // FNV-1a
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      result.hash = (result.hash ^ (static_cast<uint32_t>(id) >> shift & 255)) * 16777619;
    }
  }
  return result;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  TokenEncoder(tokenizer).encode(text, ids);
  return ids;
}

}  // namespace foresail::testing
