#include <cmath>
#include <limits>

#include "core/json.h"
#include "runtime/metrics/metrics_log.h"

namespace foresail {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

template <typename T>
Json optional_number(const std::optional<T>& value) {
  return value ? number(static_cast<double>(*value)) : Json(nullptr);
}

// Text from elsewhere (an error message) may not be UTF-8; a log line must not fail because of it.
std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string step_line_to_json(const StepLine& line) {
  Json value;
  value["step"] = line.step;
  value["loss"] = number(line.loss);
  value["grad_norm"] = number(line.grad_norm);
  value["learning_rate"] = number(line.learning_rate);
  value["tokens"] = line.tokens;
  value["step_seconds"] = number(line.step_seconds);
  value["tokens_per_second"] = number(line.tokens_per_second);
  value["mfu"] = optional_number(line.mfu);
  value["resident_bytes"] = line.resident_bytes ? Json(*line.resident_bytes) : Json(nullptr);
  value["validation_loss"] = optional_number(line.validation_loss);
  if (line.auxiliary_loss) value["auxiliary_loss"] = number(*line.auxiliary_loss);
  value["skipped"] = line.skipped;
  return dump(value);
}

StepLine step_line_from_json(std::string_view text, const std::string& source) {
  const Json value = parse_json(text, source);
  const JsonObject object(value, source);
  const auto number_of = [&](const char* key) { return object.get_number(key, kNone, -kLargest, kLargest); };
  StepLine line;
  line.step = object.require_int("step", 0, kMost);
  line.loss = number_of("loss");
  line.grad_norm = number_of("grad_norm");
  line.learning_rate = number_of("learning_rate");
  line.tokens = object.get_int("tokens", 0, 0, kMost);
  line.step_seconds = number_of("step_seconds");
  line.tokens_per_second = number_of("tokens_per_second");
  if (object.has("mfu")) line.mfu = number_of("mfu");
  if (object.has("resident_bytes")) line.resident_bytes = object.require_int("resident_bytes", 0, kMost);
  if (object.has("validation_loss")) line.validation_loss = number_of("validation_loss");
  if (object.has("auxiliary_loss")) line.auxiliary_loss = number_of("auxiliary_loss");
  line.skipped = object.get_bool("skipped", false);
  return line;
}

std::string event_to_json(const Event& event, double unix_seconds) {
  Json value;
  value["time"] = number(unix_seconds);
  value["kind"] = event.kind;
  value["step"] = event.step;
  value["text"] = event.text;
  for (const auto& [key, detail] : event.details) value[key] = detail;
  for (const auto& [key, figure] : event.numbers) value[key] = number(figure);
  return dump(value);
}

}  // namespace foresail
