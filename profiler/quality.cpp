#include "profiler/quality.h"

#include <algorithm>
#include <vector>

#include "profiler/candidates.h"
#include "profiler/host.h"
#include "profiler/replay.h"
#include "profiler/samples.h"

namespace foresail {
namespace {

bool measured_in_table(const ProfileTable& table, const ModelSpec& model, int64_t sequence_length) {
  const auto device = make_cpu_device(table.threads);
  Target target;
  target.threads = table.threads;
  for (const auto& candidate : replay_candidates({model}, table.ranks, sequence_length, last_level_cache_bytes())) {
    if (!candidate.named) break;
    const auto signatures = op_signatures(replay_program(candidate, target, *device));
    if (std::all_of(signatures.begin(), signatures.end(),
                    [&](const auto& signature) { return table.ops_in_sequence.count(signature) != 0; })) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool measured_in_sequence(const Machine& machine, const ModelSpec& model, int64_t sequence_length) {
  return std::any_of(machine.tables.begin(), machine.tables.end(), [&](const ProfileTable& table) {
    return !table.ops_in_sequence.empty() && measured_in_table(table, model, sequence_length);
  });
}

double typical_spread(const Machine& machine) {
  std::vector<double> spreads;
  for (const ProfileTable& table : machine.tables) {
    for (const auto* measurements : {&table.ops, &table.ops_in_sequence, &table.collectives}) {
      for (const auto& [key, measured] : *measurements) {
        if (measured.samples > 1) spreads.push_back(measured.spread);
      }
    }
  }
  return median(std::move(spreads));
}

}  // namespace foresail
