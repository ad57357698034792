#include "spec/forms_json.h"

namespace foresail {

std::map<std::string, int64_t> int_map_from(const JsonObject& object, const std::string& key, int64_t least,
                                            int64_t most) {
  std::map<std::string, int64_t> map;
  if (!object.has(key)) return map;
  const JsonObject inner = object.require_object(key);
  // By member, not by look-up: a look-up walks all keys.
  for (const auto& [name, value] : inner.raw().items()) {
    const Json single{{name, value}};
    map[name] = JsonObject(single, object.source(), object.path_of(key)).require_int(name, least, most);
  }
  return map;
}

std::map<std::string, std::string> string_map_from(const JsonObject& object, const std::string& key) {
  std::map<std::string, std::string> map;
  if (!object.has(key)) return map;
  const JsonObject inner = object.require_object(key);
  for (const auto& [name, value] : inner.raw().items()) {
    if (!value.is_string()) inner.fail(name, "is not a text", "write it in quotes");
    map[name] = value.get<std::string>();
  }
  return map;
}

}  // namespace foresail
