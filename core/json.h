// Strict JSON: duplicate keys refused, and a reader whose errors name the file and the field.
// Only *_json.cpp files (and this room) include it: nlohmann/json is the slowest include of the build.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace foresail {

/// Keys keep their order, so that files we write read as we wrote them.
using Json = nlohmann::ordered_json;

/// Parses text; `source` names it in errors. Throws bad_input on a syntax error, a duplicate key, depth > 64 or
/// trailing bytes.
Json parse_json(std::string_view text, const std::string& source);

/// read_file + parse_json; the value must be an object.
Json read_json_file(const std::filesystem::path& path);

/// Pretty-printed (two spaces), ends with a newline. Doubles are written so that they read back bit for bit.
std::string json_text(const Json& value);

/// json_text, written atomically.
void write_json_file(const std::filesystem::path& path, const Json& value);

/// A view of one JSON object that remembers where it came from: "job.json: field 'optimizer.learning_rate': ...".
/// `require_*` throw bad_input if the field is missing; `get_*` return the default then (and for null). Wrong types,
/// non-finite numbers and numbers outside [least, most] throw bad_input in both. 1e9 and 2.0 are whole numbers.
class JsonObject {
 public:
  JsonObject(const Json& value, std::string source, std::string path = "");

  bool has(const std::string& key) const;  ///< present and not null
  int64_t require_int(const std::string& key, int64_t least, int64_t most) const;
  int64_t get_int(const std::string& key, int64_t fallback, int64_t least, int64_t most) const;
  double require_number(const std::string& key, double least, double most) const;
  double get_number(const std::string& key, double fallback, double least, double most) const;
  bool get_bool(const std::string& key, bool fallback) const;
  std::string require_string(const std::string& key) const;
  std::string get_string(const std::string& key, const std::string& fallback) const;
  JsonObject require_object(const std::string& key) const;
  std::vector<JsonObject> get_objects(const std::string& key) const;   ///< [] if missing
  std::vector<double> get_numbers(const std::string& key) const;       ///< [] if missing
  std::vector<int64_t> get_ints(const std::string& key) const;         ///< [] if missing
  std::vector<std::string> get_strings(const std::string& key) const;  ///< [] if missing
  std::vector<std::string> keys() const;
  /// Where `key` is in the file: "optimizer.learning_rate".
  std::string path_of(const std::string& key) const;
  const Json& raw() const { return *value_; }
  const std::string& source() const { return source_; }

  /// Throws bad_input if `schema` is not `expected` ("foresail.job/1"), saying what the file is instead.
  void require_schema(const std::string& expected) const;
  /// Throws bad_input if a key is none of `known` (a misspelt field must not be silently ignored).
  void refuse_unknown_keys(const std::vector<std::string>& known) const;
  /// Throws bad_input for this field with the given cause and mend.
  [[noreturn]] void fail(const std::string& key, const std::string& cause, const std::string& mend) const;

 private:
  const Json* find(const std::string& key) const;  ///< nullptr: missing or null
  const Json& require(const std::string& key) const;
  const Json* find_array(const std::string& key) const;
  int64_t int_of(const std::string& key, const Json& value, int64_t least, int64_t most) const;
  double number_of(const std::string& key, const Json& value, double least, double most) const;

  const Json* value_;  // must outlive this view
  std::string source_, path_;
};

}  // namespace foresail
