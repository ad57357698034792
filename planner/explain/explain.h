// Predictions for people: tables of a plan, its rivals and what was refused; and the simulated step as a Chrome trace.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/human.h"
#include "planner/search/search.h"

namespace foresail {

/// Strategy, step time with its interval, time by kind, memory by kind beside the ceiling of `request`, rates, budget;
/// a warning when the machine's profile is too unsteady for the interval to say much.
std::string candidate_text(const Candidate& candidate, const SearchRequest& request);
/// One line per plan: strategy, step time, peak, tokens per second.
std::string candidates_table(std::span<const Candidate> candidates);
/// Device counts against time, money and efficiency; empty for fewer than two points.
std::string frontier_table(const SearchResult& result);
/// What was not taken and why: illegal combinations, strategies over a limit, counts of what was priced.
std::string why_not_text(const SearchResult& result);

/// Chrome / Perfetto JSON of one simulated step (simulated with `record_events`): a process per stage, a thread per
/// queue, and a counter of the bytes of activations kept. Beyond 200,000 instructions a block's run is one event.
std::string chrome_trace(std::span<const Program> programs, const Simulation& simulation);

}  // namespace foresail
