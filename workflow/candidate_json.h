// One element of `plans` in the documents of `plan --json` and `simulate --json`. Only for *_json.cpp files.
#pragma once

#include "core/json.h"
#include "planner/search/search.h"

namespace foresail {

/// `baseline_devices` 0: no scaling is known, `scaling` is null.
Json candidate_form(const Candidate& candidate, int64_t baseline_devices);

/// null if empty.
Json optional_form(const std::optional<double>& value);

}  // namespace foresail
