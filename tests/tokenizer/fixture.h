// Tokenizers and texts of the tests: GPT-2's merges under the patterns of several families (fixtures/README.md), and a
// mixed text of a megabyte made from pieces.
#pragma once

#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace foresail::testing {

/// fixtures/NAME.json with GPT-2's vocabulary and merges filled in.
std::string tokenizer_text(const std::string& name);
const Tokenizer& tokenizer(const std::string& name);
std::vector<std::string> tokenizer_names();

/// A small byte-level tokenizer.json: all bytes and a few merges. `change` is a JSON merge patch (RFC 7396).
std::string small_tokenizer(const std::string& change = "{}");

/// The documents of fixtures/text.mjs.
const std::vector<std::string>& mixed_text();

/// What the peer found in each of them: the number of ids and their hash.
struct PeerIds {
  size_t count = 0;
  uint32_t hash = 0;
  bool operator==(const PeerIds&) const = default;
};
std::vector<PeerIds> peer_ids(const std::string& name);
PeerIds summary_of(const std::vector<int32_t>& ids);

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text);

}  // namespace foresail::testing
