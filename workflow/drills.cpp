#include "workflow/drills.h"

#include <chrono>
#include <cstring>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"

namespace foresail {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRuin = 0x5A;  // a byte that no training leaves everywhere

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Digests of parameters and both moments, by tensor and quantity.
std::map<std::string, std::string> state_digests(std::span<const SegmentView> segments, const CheckpointRanks& ranks) {
  std::map<std::string, std::string> all;
  for (const SegmentView& view : segments) {
    for (auto& [tensor, digest] : tensor_digests(view, ranks)) {
      all[tensor + std::string(suffix_of(view.quantity))] = digest;
    }
  }
  return all;
}

void ruin(const Session& session) {
  const ArenaMap& map = session.programs.train.arena;
  for (const Segment& segment : {map.parameters, map.master, map.moment1, map.moment2}) {
    std::memset(session.arena->data() + segment.offset, kRuin, static_cast<size_t>(segment.bytes));
  }
}

int64_t differences(const std::map<std::string, std::string>& one, const std::map<std::string, std::string>& other) {
  int64_t count = 0;
  for (const auto& [name, digest] : one) {
    const auto found = other.find(name);
    if (found == other.end() || found->second != digest) ++count;
  }
  return count;
}

}  // namespace

DrillStep run_step(RunSetup& setup, int64_t step, int64_t total_steps) {
  Session& session = *setup.session;
  const Program& program = session.programs.train;
  const int64_t batch = global_batch_of(program);
  session.switch_to(*session.train);
  DrillStep result;
  std::vector<int32_t> sample(static_cast<size_t>(2 * program.sequence_length));
  const auto begin = Clock::now();
  const SampleReader reader = reader_of(*setup.training);
  fill_batch(*session.train, program, session.place, (step - 1) * batch, reader, sample);
  result.data_seconds = seconds_since(begin);
  session.train->step_inputs() =
      step_inputs_at(session.job, step, total_steps, counted_targets(program, (step - 1) * batch, reader));
  session.train->step();
  result.seconds = seconds_since(begin);
  result.loss = session.train->metrics().loss;
  return result;
}

CheckpointDrill drill_checkpoint(RunSetup& setup, Communicator& communicator, const std::filesystem::path& folder,
                                 int64_t completed, int64_t total_steps) {
  Session& session = *setup.session;
  const CheckpointRanks ranks{&communicator, world_group(session)};
  const auto segments = segment_views(session.programs.train, session.slices, session.arena->data());
  const auto before = state_digests(segments, ranks);
  RunState state = setup.identity;
  state.step = completed;
  state.samples_consumed = completed * global_batch_of(session.programs.train);
  const SaveResult saved =
      save_checkpoint({.folder = checkpoints_folder(folder), .state = state, .segments = segments, .keep = 1}, ranks);
  CheckpointDrill drill{.bytes = saved.bytes, .save_seconds = saved.seconds};
  drill.loss = run_step(setup, completed + 1, total_steps).loss;
  ruin(session);
  const auto begin = Clock::now();
  restore_checkpoint(saved.path, segments, {}, ranks);
  drill.restore_seconds = seconds_since(begin);
  drill.tensors = static_cast<int64_t>(before.size());
  drill.different_tensors = differences(before, state_digests(segments, ranks));
  drill.replayed_loss = run_step(setup, completed + 1, total_steps).loss;
  return drill;
}

}  // namespace foresail
