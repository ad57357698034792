#include "core/error.h"
#include "core/json.h"
#include "runtime/data/prepare.h"

namespace foresail {

JsonDocument document_of_json_line(std::string_view line, const std::string& source) {
  const Json value = parse_json(line, source);
  const JsonObject object(value, source);
  const bool pair = object.has("prompt") || object.has("completion");
  if (!pair) return {"", object.require_string("text")};
  if (object.has("text")) {
    throw_bad_input(source, "it has a text beside prompt or completion",
                    "keep one or the other: which one is trained on?");
  }
  return {object.require_string("prompt"), object.require_string("completion")};
}

}  // namespace foresail
