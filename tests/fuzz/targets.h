// Every reader of files that people or disks can damage, with sound examples to start from.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/mutate.h"

namespace foresail {

struct FuzzTarget {
  std::string name;
  Content kind = Content::json;
  std::vector<std::string> examples;  ///< accepted as they are
  /// Reads the content and uses what it got as the program would. Returns or throws an Error.
  std::function<void(const std::string& content)> read;
};

std::vector<FuzzTarget> file_targets();  ///< readers of binary files and of what lies beside them
std::vector<FuzzTarget> text_targets();  ///< readers of JSON documents
FuzzTarget tokenizer_target();           ///< tokenizer.json; one of text_targets()

}  // namespace foresail
