// JSON forms of the plain data in this room, for *_json.cpp files: a document that embeds another (a plan its job) builds
// one tree and keeps the field's full path in its errors.
#pragma once

#include "core/json.h"
#include "spec/job.h"
#include "spec/plan.h"
#include "spec/strategy.h"
#include "spec/target.h"

namespace foresail {

Json job_form(const Job& job);
Job job_from(const JsonObject& object);
Json strategy_form(const Strategy& strategy);
Strategy strategy_from(const JsonObject& object);
Json target_form(const Target& target);
Target target_from(const JsonObject& object);
Json prediction_form(const Prediction& predicted);
Prediction prediction_from(const JsonObject& object);

/// {"key": number, ...} as a map; numbers outside of [least, most] throw bad_input. Empty if `key` is missing.
std::map<std::string, int64_t> int_map_from(const JsonObject& object, const std::string& key, int64_t least,
                                            int64_t most);
std::map<std::string, std::string> string_map_from(const JsonObject& object, const std::string& key);

/// Largest accepted sizes: beyond any machine there is, small enough that products of a few of them stay exact.
constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr int64_t kMostSteps = int64_t{1} << 40;

}  // namespace foresail
