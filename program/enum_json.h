// Enumerations as words in JSON. The words of an enumeration stand in an array in the order of its values.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <string>

#include "core/json.h"

namespace foresail {

template <typename Enum, size_t N>
const char* name_in(const char* const (&names)[N], Enum value) {
  return names[static_cast<size_t>(value)];
}

/// Throws bad_input naming the key if its word is none of these.
template <typename Enum, size_t N>
Enum value_in(const char* const (&names)[N], const JsonObject& object, const std::string& key) {
  const std::string text = object.require_string(key);
  for (size_t i = 0; i < N; ++i) {
    if (text == names[i]) return static_cast<Enum>(i);
  }
  object.fail(key, fmt::format("'{}' is unknown", text), fmt::format("use one of {}", fmt::join(names, ", ")));
}

}  // namespace foresail
