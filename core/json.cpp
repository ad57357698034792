#include "core/json.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

constexpr size_t kDepthLimit = 64;

/// Builds the value while the text is read, so that what a finished tree no longer shows (a repeated key, the place of
/// an error) can be refused. Children are appended to the innermost open container only, so its address is stable.
class StrictReader final : public nlohmann::json_sax<Json> {
 public:
  Json value;
  std::string error;  ///< empty: none so far

  bool null() override { return add(Json(nullptr)) != nullptr; }
  bool boolean(bool flag) override { return add(Json(flag)) != nullptr; }
  bool number_integer(number_integer_t number) override { return add(Json(number)) != nullptr; }
  bool number_unsigned(number_unsigned_t number) override { return add(Json(number)) != nullptr; }
  bool number_float(number_float_t number, const string_t& text) override {
    if (!std::isfinite(number)) return refuse("the number " + text + " is too large");
    return add(Json(number)) != nullptr;
  }
  bool string(string_t& text) override { return add(Json(std::move(text))) != nullptr; }
  bool binary(binary_t&) override { return refuse("binary values are not JSON text"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& text) override {
    if (!open_.back().keys.insert(text).second) return refuse("the key '" + text + "' appears twice in one object");
    key_ = std::move(text);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& exception) override {
    // Library messages start with "[json.exception.parse_error.101] ", which tells a user nothing.
    std::string message = exception.what();
    if (const size_t end = message.find("] "); message.starts_with('[') && end != std::string::npos) {
      message.erase(0, end + 2);
    }
    return refuse(fmt::format("is not JSON at byte {}: {}", position, message));
  }

 private:
  struct Container {
    Json* value;
    std::unordered_set<std::string> keys;
  };
  std::vector<Container> open_;
  std::string key_;

  bool refuse(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }

  Json* add(Json&& child) {
    if (open_.empty()) {
      value = std::move(child);
      return &value;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(child));
      return &parent.back();
    }
    // Appended to the underlying vector: operator[] would search all earlier keys, quadratic in their number.
    auto& members = parent.get_ref<Json::object_t&>();
    static_cast<Json::object_t::Container&>(members).emplace_back(std::move(key_), std::move(child));
    return &members.back().second;
  }

  bool open(Json&& container) {
    if (open_.size() >= kDepthLimit) return refuse(fmt::format("is nested deeper than {} levels", kDepthLimit));
    open_.push_back({add(std::move(container)), {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }
};

void require_finite(const Json& value) {
  if (value.is_number_float()) ensure(std::isfinite(value.get<double>()), "numbers written to JSON are finite");
  if (value.is_structured()) {
    for (const Json& child : value) require_finite(child);
  }
}

std::string list_of(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  StrictReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    throw_bad_input(source, reader.error.empty() ? "is not JSON" : reader.error, "correct the file");
  }
  return std::move(reader.value);
}

Json read_json_file(const std::filesystem::path& path) {
  Json value = parse_json(read_file(path), path.string());
  if (!value.is_object()) throw_bad_input(path.string(), "is not a JSON object", "check that this is the right file");
  return value;
}

std::string json_text(const Json& value) {
  require_finite(value);
  try {
    return value.dump(2) + "\n";
  } catch (const Json::exception&) {
    throw_bad_input("JSON", "a text in it is not valid UTF-8", "use names and paths in UTF-8");
  }
}

void write_json_file(const std::filesystem::path& path, const Json& value) {
  write_file_atomically(path, json_text(value));
}

JsonObject::JsonObject(const Json& value, std::string source, std::string path)
    : value_(&value), source_(std::move(source)), path_(std::move(path)) {
  if (value.is_object()) return;
  throw_bad_input(path_.empty() ? source_ : source_ + ": field '" + path_ + "'",
                  std::string("is a JSON ") + value.type_name() + " where an object is needed", "write { ... }");
}

const Json* JsonObject::find(const std::string& key) const {
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const Json& JsonObject::require(const std::string& key) const {
  const Json* found = find(key);
  if (found == nullptr) fail(key, "is missing", "add it");
  return *found;
}

std::string JsonObject::path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

void JsonObject::fail(const std::string& key, const std::string& cause, const std::string& mend) const {
  throw_bad_input(source_ + ": field '" + path_of(key) + "'", cause, mend);
}

int64_t JsonObject::int_of(const std::string& key, const Json& value, int64_t least, int64_t most) const {
  const std::string range = fmt::format("give a whole number from {} to {}", least, most);
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto large = value.get<uint64_t>();
    if (large > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(key, fmt::format("{} is out of range", large), range);
    }
    number = static_cast<int64_t>(large);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {  // 1e9 is a whole number too; beyond 2^53 a double may be another number
    const double real = value.get<double>();
    if (!(std::abs(real) <= 0x1p53) || real != std::floor(real)) {
      fail(key, fmt::format("{} is not a whole number in range", real), range);
    }
    number = static_cast<int64_t>(real);
  } else {
    fail(key, std::string("is a JSON ") + value.type_name() + " where a whole number is needed", range);
  }
  if (number < least || number > most) fail(key, fmt::format("{} is out of range", number), range);
  return number;
}

double JsonObject::number_of(const std::string& key, const Json& value, double least, double most) const {
  const std::string range = fmt::format("give a number from {} to {}", least, most);
  if (!value.is_number()) {
    fail(key, std::string("is a JSON ") + value.type_name() + " where a number is needed", range);
  }
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < least || number > most) {
    fail(key, fmt::format("{} is out of range", number), range);
  }
  return number;
}

bool JsonObject::has(const std::string& key) const { return find(key) != nullptr; }

int64_t JsonObject::require_int(const std::string& key, int64_t least, int64_t most) const {
  return int_of(key, require(key), least, most);
}

int64_t JsonObject::get_int(const std::string& key, int64_t fallback, int64_t least, int64_t most) const {
  const Json* found = find(key);
  return found == nullptr ? fallback : int_of(key, *found, least, most);
}

double JsonObject::require_number(const std::string& key, double least, double most) const {
  return number_of(key, require(key), least, most);
}

double JsonObject::get_number(const std::string& key, double fallback, double least, double most) const {
  const Json* found = find(key);
  return found == nullptr ? fallback : number_of(key, *found, least, most);
}

bool JsonObject::get_bool(const std::string& key, bool fallback) const {
  const Json* found = find(key);
  if (found == nullptr) return fallback;
  if (!found->is_boolean()) {
    fail(key, std::string("is a JSON ") + found->type_name() + " where true or false is needed", "write true or false");
  }
  return found->get<bool>();
}

std::string JsonObject::require_string(const std::string& key) const {
  const Json& value = require(key);
  if (!value.is_string()) {
    fail(key, std::string("is a JSON ") + value.type_name() + " where a text is needed", "write it in quotes");
  }
  return value.get<std::string>();
}

std::string JsonObject::get_string(const std::string& key, const std::string& fallback) const {
  return has(key) ? require_string(key) : fallback;
}

JsonObject JsonObject::require_object(const std::string& key) const {
  return JsonObject(require(key), source_, path_of(key));
}

const Json* JsonObject::find_array(const std::string& key) const {
  const Json* found = find(key);
  if (found != nullptr && !found->is_array()) {
    fail(key, std::string("is a JSON ") + found->type_name() + " where a list is needed", "write [ ... ]");
  }
  return found;
}

std::vector<JsonObject> JsonObject::get_objects(const std::string& key) const {
  std::vector<JsonObject> objects;
  const Json* array = find_array(key);
  if (array == nullptr) return objects;
  for (size_t i = 0; i < array->size(); ++i) {
    objects.emplace_back((*array)[i], source_, fmt::format("{}[{}]", path_of(key), i));
  }
  return objects;
}

std::vector<double> JsonObject::get_numbers(const std::string& key) const {
  constexpr double kMost = std::numeric_limits<double>::max();
  std::vector<double> numbers;
  const Json* array = find_array(key);
  if (array == nullptr) return numbers;
  for (size_t i = 0; i < array->size(); ++i) {
    numbers.push_back(number_of(fmt::format("{}[{}]", key, i), (*array)[i], -kMost, kMost));
  }
  return numbers;
}

std::vector<int64_t> JsonObject::get_ints(const std::string& key) const {
  std::vector<int64_t> numbers;
  const Json* array = find_array(key);
  if (array == nullptr) return numbers;
  for (size_t i = 0; i < array->size(); ++i) {
    numbers.push_back(int_of(fmt::format("{}[{}]", key, i), (*array)[i], std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max()));
  }
  return numbers;
}

std::vector<std::string> JsonObject::get_strings(const std::string& key) const {
  std::vector<std::string> texts;
  const Json* array = find_array(key);
  if (array == nullptr) return texts;
  for (size_t i = 0; i < array->size(); ++i) {
    if (!(*array)[i].is_string()) fail(fmt::format("{}[{}]", key, i), "is not a text", "write it in quotes");
    texts.push_back((*array)[i].get<std::string>());
  }
  return texts;
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : value_->items()) keys.push_back(key);
  return keys;
}

void JsonObject::require_schema(const std::string& expected) const {
  const std::string schema = get_string("schema", "");
  if (schema == expected) return;
  if (schema.empty()) {
    throw_bad_input(source_, "has no field 'schema'", "give a file with \"schema\": \"" + expected + "\"");
  }
  throw_bad_input(source_, "is a file of schema '" + schema + "', not '" + expected + "'",
                  "give the right file, or write it anew with this version of foresail");
}

void JsonObject::refuse_unknown_keys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(key, "is not a known field", "remove or correct it; known here: " + list_of(known));
    }
  }
}

}  // namespace foresail
