#include "core/json.h"
#include "runtime/data/prepare.h"

namespace foresail {

std::string text_of_json_line(std::string_view line, const std::string& source) {
  const Json value = parse_json(line, source);
  return JsonObject(value, source).require_string("text");
}

}  // namespace foresail
