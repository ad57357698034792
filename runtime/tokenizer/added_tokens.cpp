#include "runtime/tokenizer/added_tokens.h"

#include <algorithm>

#include "core/error.h"
#include "runtime/tokenizer/unicode.h"

namespace foresail {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (size_t t = 0; t < tokens_.size(); ++t) {
    ensure(!tokens_[t].content.empty(), "an added token is not empty");
    int32_t node = 0;
    for (const char c : tokens_[t].content) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_[static_cast<size_t>(node)].children.emplace_back(byte, next);
        nodes_.emplace_back();
      }
      node = next;
    }
    ensure(nodes_[static_cast<size_t>(node)].token < 0, "added tokens differ");
    nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(t);
    begins_[static_cast<unsigned char>(tokens_[t].content[0])] = true;
  }
}

int32_t AddedTokenFinder::child(int32_t node, unsigned char byte) const {
  for (const auto& [key, next] : nodes_[static_cast<size_t>(node)].children) {
    if (key == byte) return next;
  }
  return -1;
}

AddedTokenFinder::Found AddedTokenFinder::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return {};
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    Found longest;
    int32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      node = child(node, static_cast<unsigned char>(text[at]));
      if (node < 0) break;
      const int32_t token = nodes_[static_cast<size_t>(node)].token;
      if (token >= 0) longest = {&tokens_[static_cast<size_t>(token)], begin, at + 1};
    }
    if (longest.token != nullptr) return longest;
  }
  return {};
}

AddedTokenFinder::Found AddedTokenFinder::strip(std::string_view text, Found found, size_t done) {
  if (found.token->left_strip) {
    found.begin = std::max(done, found.begin - trailing_white_space(text.substr(0, found.begin)));
  }
  if (found.token->right_strip) found.end += leading_white_space(text.substr(found.end));
  return found;
}

}  // namespace foresail
