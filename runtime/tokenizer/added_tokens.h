// Added tokens: texts that are found in the input before anything else is done to it, each one id.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace foresail {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool left_strip = false, right_strip = false;  ///< takes the white space beside it along
  bool normalized = false;                       ///< searched in the normalised text, not in the text as given
  bool special = false;
};

/// A part of a text: one added token, or the text between two.
struct TextPart {
  std::string_view text;
  int32_t id = -1;  ///< -1: text
};

/// Finds tokens as Hugging Face's Aho-Corasick automaton does: leftmost, then longest, without overlap.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  /// Contents are not empty and differ.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  /// Calls `part` for every part of the text in order; parts are not empty.
  template <typename Function>
  void split(std::string_view text, const Function& part) const {
    size_t done = 0, from = 0;
    for (Found found = find(text, from); found.token != nullptr; found = find(text, from)) {
      from = found.end;
      const Found whole = strip(text, found, done);
      if (done < whole.begin) part(TextPart{text.substr(done, whole.begin - done)});
      part(TextPart{text.substr(whole.begin, whole.end - whole.begin), whole.token->id});
      done = whole.end;
    }
    if (done < text.size()) part(TextPart{text.substr(done)});
  }

 private:
  struct Found {
    const AddedToken* token = nullptr;
    size_t begin = 0, end = 0;
  };
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;
    int32_t token = -1;
  };
  int32_t child(int32_t node, unsigned char byte) const;
  Found find(std::string_view text, size_t from) const;
  /// `found` with the white space that it takes along, but nothing before `done`.
  static Found strip(std::string_view text, Found found, size_t done);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  ///< a trie of bytes; 0 is the root
  std::array<bool, 256> begins_{};
};

}  // namespace foresail
