#include "core/json.h"
#include "workflow/sample.h"

namespace foresail {

std::string text_result_to_json(const TextResult& result) {
  // Bytes that are no UTF-8 (a character cut short) become U+FFFD: JSON holds text only.
  return Json{{"text", result.text}, {"tokens", result.tokens}, {"seconds", result.seconds}}.dump(
             2, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

}  // namespace foresail
