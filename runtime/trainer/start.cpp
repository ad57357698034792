#include "runtime/trainer/start.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/model_weights.h"
#include "runtime/checkpoint/transfer.h"
#include "runtime/trainer/initialise.h"

namespace foresail {
namespace {

/// Relative bound for another plan, placement or thread count.
double other_plan_tolerance(DType activation) {
  if (activation == DType::f16) return 0x1p-9;
  if (activation == DType::bf16) return 0x1p-6;
  return 1e-5;
}

void emit(const TrainerOptions& options, const CheckpointRanks& ranks, const RunEvent& event) {
  if (ranks.rank() == 0 && options.on_event) options.on_event(event);
}

[[noreturn]] void refuse_other(const std::filesystem::path& path, const char* what, const std::string& stored,
                               const std::string& own) {
  throw_bad_input(path.string(), fmt::format("it was trained with {} '{}', this run has '{}'", what, stored, own),
                  "resume with what the run was started with, or start a new run with --init");
}

/// The first line in which two texts differ: enough to tell two model configurations apart.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  while (line_a == line_b && (lines_a || lines_b)) {
    if (!std::getline(lines_a, line_a)) line_a.clear();
    if (!std::getline(lines_b, line_b)) line_b.clear();
  }
  const auto trimmed = [](const std::string& line) {
    const size_t first = line.find_first_not_of(' '), last = line.find_last_not_of(" ,");
    return first == std::string::npos ? std::string() : line.substr(first, last - first + 1);
  };
  return {trimmed(line_a), trimmed(line_b)};
}

void check_identity(const std::filesystem::path& path, const RunState& stored, const RunState& own) {
  if (stored.model_config != own.model_config) {
    const auto [stored_line, own_line] = first_difference(stored.model_config, own.model_config);
    refuse_other(path, "another model:", stored_line, own_line);
  }
  if (stored.dataset_identity != own.dataset_identity) {
    refuse_other(path, "the dataset", stored.dataset_identity, own.dataset_identity);
  }
  if (stored.seed != own.seed) refuse_other(path, "the seed", std::to_string(stored.seed), std::to_string(own.seed));
}

/// The step folder to resume from, the same on every rank; empty if the run has written no checkpoint yet.
std::filesystem::path agreed_checkpoint(const CheckpointRanks& ranks, const TrainerOptions& options) {
  return first_rank_does(ranks, [&]() -> std::string {
    if (!options.resume_step && !holds_checkpoints(options.run)) return "";
    return checkpoint_to_resume(options.run, options.resume_step).path.string();
  });
}

std::string note_of(const RunState& state, const char* name) {
  const auto found = state.notes.find(name);
  return found == state.notes.end() ? "" : found->second;
}

/// The position in the data counts sequences: another length would read other data as if they were new.
void check_sequence_length(const std::filesystem::path& path, const RunState& stored, const Program& program) {
  const std::string note = note_of(stored, kSequenceNote);
  const std::string own = std::to_string(program.sequence_length);
  if (!note.empty() && note != own) refuse_other(path, "sequence length", note, own);
}

StartState resume(Session& session, const CheckpointRanks& ranks, const TrainerOptions& options,
                  const std::filesystem::path& path) {
  RunState stored;
  all_do(ranks, [&] {
    const Checkpoint checkpoint(path);
    if (!checkpoint.manifest().sealed) {
      throw_bad_input(path.string(), "it was written by hand and holds no digests: a resume could not prove itself",
                      "start a new run with --init");
    }
    stored = checkpoint.state();
    check_identity(path, stored, options.identity);
    check_sequence_length(path, stored, session.programs.train);
    if (options.stop_after > 0 && stored.step > options.stop_after) {
      throw_bad_input(path.string(),
                      fmt::format("it is at step {}, the run is to end after {}", stored.step, options.stop_after),
                      "give more --steps, or train into another folder with --init");
    }
    return std::string();
  });
  const Program& program = session.programs.train;
  const auto segments = segment_views(program, session.slices, session.arena->data());
  const std::string digest = restore_checkpoint(path, segments, {}, ranks);
  StartState start{.step = stored.step,
                   .samples = stored.samples_consumed,
                   .losses = stored.losses,
                   .checkpoint = path.string(),
                   .loss_scaler = first_loss_scaler(session.job),
                   .same_plan = stored.plan_digest == options.identity.plan_digest,
                   .source_config = note_of(stored, kConfigNote)};
  if (const std::string note = note_of(stored, kLossScaleNote); !note.empty()) {
    start.loss_scaler = loss_scaler_from(note, path.string());
  }
  const std::string batch = note_of(stored, kBatchNote);
  start.same_batch = batch == std::to_string(global_batch_of(program));
  const std::string next = note_of(stored, kNextBatchNote);
  const Program& next_program = session.step_after(stored.samples_consumed).program;
  start.same_next_batch = (next.empty() ? batch : next) == std::to_string(global_batch_of(next_program));
  RunEvent proof{"resume_unverified", stored.step,
                 fmt::format("digests agree; the global batch was '{}', so losses cannot be compared", batch),
                 path.string(), 0};
  if (const std::string note = note_of(stored, kProbeNote); start.same_batch && !note.empty()) {
    const double recorded = std::strtod(note.c_str(), nullptr);
    const double actual = std::strtod(probe_loss(session, options, stored.samples_consumed).c_str(), nullptr);
    compare_losses(fmt::format("{}: loss of the next batch", path.string()), recorded, actual, start.same_plan,
                   program.precision.activation);
    proof.kind = "resume_verified";
    proof.text = fmt::format("the next batch has the recorded loss {:.9g}", actual);
  }
  // Only what has proved itself may change the run's folder.
  first_rank_does(ranks, [&] {
    remove_leftovers(checkpoints_folder(options.run));
    set_aside_after(checkpoints_folder(options.run), stored.step);
    return std::string();
  });
  emit(options, ranks, {"resume", stored.step, "parameters have digest " + digest, path.string(), 0});
  emit(options, ranks, proof);
  return start;
}

/// What became of the elements on their way, in words; empty if they are the same numbers.
std::string text_of(const Conversion& conversion, DType dtype) {
  if (conversion.rounded == 0) return "";
  return fmt::format("; {:.3g} % of the values were rounded to {}",
                     100.0 * static_cast<double>(conversion.rounded) / static_cast<double>(conversion.elements),
                     name_of(dtype));
}

/// Parameters, and master copies where there are any: of another run's checkpoint or from a Hugging Face folder. Returns
/// where they are from.
std::string take_parameters(Session& session, const CheckpointRanks& ranks, const std::filesystem::path& path,
                            StartState& start) {
  const Program& program = session.programs.train;
  auto segments = segment_views(program, session.slices, session.arena->data());
  std::erase_if(segments, [](const SegmentView& view) {
    return view.quantity != Quantity::parameter && view.quantity != Quantity::master;
  });
  std::error_code error;
  if (std::filesystem::exists(path / kManifestName, error)) {
    restore_checkpoint(path, segments, {.convert = true}, ranks);
    all_do(ranks, [&] {
      start.source_config = note_of(Checkpoint(path).state(), kConfigNote);
      return std::string();
    });
    return "parameters of " + path.string();
  }
  const RestoredWeights restored = restore_weights(path, session.model, segments, ranks);
  start.source_config = restored.config;
  return fmt::format("weights of {}, digest {}{}", path.string(), restored.parameters_digest,
                     text_of(restored.conversion, program.precision.parameter));
}

}  // namespace

void compare_losses(const std::string& what, double recorded, double actual, bool same_plan, DType activation) {
  const double tolerance = other_plan_tolerance(activation) * std::max(1.0, std::abs(recorded));
  const bool equal = same_plan ? recorded == actual : std::abs(actual - recorded) <= tolerance;
  if (equal) return;
  throw_bad_input(what,
                  fmt::format("recorded {:.17g}, now {:.17g}{}", recorded, actual,
                              same_plan ? " (the same plan must give the same bits)" : ""),
                  "the state is not what was saved: resume from an older checkpoint with --resume=step-N");
}

std::string probe_loss(Session& session, const TrainerOptions& options, int64_t samples_consumed) {
  return fmt::format("{:a}", evaluate_loss(session, options.training, samples_consumed, 1).value());
}

StartState start_run(Session& session, const CheckpointRanks& ranks, const TrainerOptions& options) {
  initialise(session.programs.train, session.slices, static_cast<uint64_t>(session.job.seed), session.arena->data());
  if (options.resume) {
    if (const auto path = agreed_checkpoint(ranks, options); !path.empty())
      return resume(session, ranks, options, path);
    emit(options, ranks, {"resume", 0, "there is no checkpoint yet: starting at step 0", "", 0});
  }
  StartState start;
  const std::string origin =
      options.init ? take_parameters(session, ranks, *options.init, start) : std::string("new parameters");
  emit(options, ranks, {"start", 0, origin, "", 0});
  start.loss_scaler = first_loss_scaler(session.job);
  return start;
}

}  // namespace foresail
