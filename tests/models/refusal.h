// What a refused config.json must say.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "models/model_spec.h"

namespace foresail {

/// Expects bad_input in one line that contains every one of `words` (the file's name is always one of them).
inline void expect_refused(const std::string& json, std::vector<std::string> words) {
  words.emplace_back("some/config.json");
  try {
    parse_model_config(json, "some/config.json");
    ADD_FAILURE() << "accepted: " << json;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input) << error.what();
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_FALSE(error.mend().empty()) << message;
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << message << " lacks " << word;
  }
}

}  // namespace foresail
