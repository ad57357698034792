#include <fstream>

#include "core/json.h"
#include "workflow/train.h"
#include "workflow/train_events.h"

namespace foresail {
namespace {

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

std::string train_result_to_json(const TrainResult& result) {
  return Json{{"steps", result.steps},
              {"tokens", result.tokens},
              {"loss", result.loss},
              {"validation_loss", or_null(result.validation_loss)},
              {"step_seconds_median", result.step_seconds_median},
              {"tokens_per_second", result.tokens_per_second},
              {"mfu", result.mfu},
              {"peak_bytes", result.peak_bytes},
              {"arena_bytes", result.arena_bytes},
              {"restarts", result.restarts},
              {"usd", or_null(result.usd)},
              {"checkpoint", result.checkpoint}}
             .dump(2) +
         "\n";
}

int64_t count_resumes(const std::filesystem::path& events) {
  std::ifstream file(events);
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    // A line torn by a kill is no event.
    const auto value = Json::parse(line, nullptr, false);
    if (value.is_object() && value.value("kind", "") == "resume") ++count;
  }
  return count;
}

}  // namespace foresail
