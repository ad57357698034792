// `foresail sample`: text from a checkpoint alone. One rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace foresail {

struct TextOptions {
  std::filesystem::path checkpoint;
  std::string prompt;
  std::filesystem::path tokenizer;  ///< empty: the one in the run's folder
  int64_t tokens = 200;
  double temperature = 0.8;  ///< 0: always the most likely token
  int64_t seed = 1;
  int threads = 0;  ///< 0: all cores
};

struct TextResult {
  std::string text;    ///< prompt and continuation
  int64_t tokens = 0;  ///< generated
  double seconds = 0;
};

/// `emit` gets each decoded piece as it is drawn (may be empty). Throws bad_input on a damaged or foreign checkpoint.
TextResult sample(const TextOptions& options, const std::function<void(const std::string&)>& emit = {});
std::string text_result_to_json(const TextResult& result);

}  // namespace foresail
