#include "workflow/run_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/version.h"
#include "program/compile.h"
#include "runtime/data/dataset.h"
#include "workflow/run_notes.h"
#include "workflow/run_tokenizer.h"

namespace foresail {
namespace {

SampleOptions sample_options(const Plan& plan, int64_t vocabulary) {
  return {.sequence_length = plan.job.sequence_length,
          .validation_fraction = plan.job.validation_fraction,
          .seed = static_cast<uint64_t>(plan.job.seed),
          .vocabulary = vocabulary};
}

void open_data(RunSetup& setup, const std::filesystem::path& prefix, int64_t vocabulary) {
  setup.data = open_dataset(prefix);
  const SampleOptions options = sample_options(setup.plan, vocabulary);
  setup.training = std::make_unique<SampleSource>(*setup.data, options, DataPart::training);
  if (setup.plan.job.validation_fraction > 0) {
    setup.validation = std::make_unique<SampleSource>(*setup.data, options, DataPart::validation);
  }
}

RunState identity_of(const RunSetup& setup) {
  RunState state;
  state.seed = static_cast<uint64_t>(setup.plan.job.seed);
  state.foresail_version = version_text();
  state.plan_digest = setup.plan_digest;
  state.dataset_identity = dataset_identity(*setup.data);
  state.model_name = setup.plan.model_name;
  state.model_config = setup.plan.model_config;
  const auto info = load_dataset_info(*setup.data);
  if (info) {
    note_tokenizer(*info, state.notes);
  } else if (const std::string tokenizer = setup.data->origin().tokenizer; !tokenizer.empty()) {
    state.notes[kTokenizerNote] = tokenizer;
  }
  return state;
}

}  // namespace

std::filesystem::path data_prefix(const std::filesystem::path& given, const Plan& plan) {
  if (!given.empty()) return given;
  if (plan.job.data_path.empty())
    throw_bad_input("--data", "no dataset was named, nor does the plan's job name one", "add --data PREFIX");
  return plan.job.data_path;
}

RankCount check_setup(const std::filesystem::path& plan_path, const std::filesystem::path& data,
                      const std::string& device) {
  RunSetup setup;
  setup.plan = load_plan(plan_path);
  const SessionRequest request = request_of(setup.plan, plan_path.string());
  if (setup.plan.target.back_end == "catalogue") {
    throw_bad_input(plan_path.string(), fmt::format("it is for the catalogue machine '{}'", setup.plan.machine_name),
                    "plan with a machine.json of foresail profile to run here");
  }
  const std::vector<std::string> reasons = legal(request.model, request.job, request.strategy);
  if (!reasons.empty()) {
    throw_bad_input(plan_path.string() + ": field 'strategy'", fmt::format("{}", fmt::join(reasons, "; ")),
                    "let foresail plan choose it");
  }
  const std::string back_end = device.empty() ? setup.plan.target.back_end : device;
  if (back_end == "reference" && precision_of(request.job).activation != DType::f64) {
    throw_bad_input(plan_path.string(),
                    fmt::format("it trains in {}, the reference device computes in fp64", request.job.precision),
                    "plan with precision fp64 in job.json, or train with --device cpu");
  }
  require_planned_programs(request);
  open_data(setup, data_prefix(data, setup.plan), request.model.vocabulary);
  check_vocabulary(*setup.data, request.model.vocabulary);
  return {.ranks = static_cast<int>(setup.plan.strategy.devices()),
          .threads = setup.plan.target.threads,
          .bytes_per_rank = setup.plan.predicted.peak_bytes};
}

RunSetup open_run(const std::filesystem::path& plan_path, const std::filesystem::path& data, const std::string& device,
                  Communicator& communicator) {
  RunSetup setup;
  setup.plan_text = read_file(plan_path);
  setup.plan = plan_from_json(setup.plan_text, plan_path.string());
  setup.plan_digest = digest_of(setup.plan_text);
  const SessionRequest request = request_of(setup.plan, plan_path.string());
  open_data(setup, data_prefix(data, setup.plan), request.model.vocabulary);
  setup.session =
      make_session(request, communicator,
                   make_device(device.empty() ? setup.plan.target.back_end : device, setup.plan.target.threads));
  setup.identity = identity_of(setup);
  setup.arena_bytes =
      static_cast<int64_t>(largest(communicator, *setup.session, static_cast<double>(setup.session->arena->bytes())));
  const Prediction& predicted = setup.plan.predicted;
  if (predicted.mfu > 0) setup.peak_flops_per_second = predicted.model_flops_per_second_per_device / predicted.mfu;
  return setup;
}

void require_predicted_arena(const RunSetup& setup, const std::filesystem::path& plan) {
  if (setup.arena_bytes == setup.plan.predicted.arena_bytes) return;
  throw_bad_input(plan.string(),
                  fmt::format("it predicts an arena of {} bytes, {} were allocated", setup.plan.predicted.arena_bytes,
                              setup.arena_bytes),
                  "make the plan again with this version of foresail");
}

SampleReader reader_of(const SampleSource& source) {
  return {[&source](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
            source.read(index, tokens, targets);
          },
          [&source](int64_t index) { return source.counted_targets(index); }};
}

double mfu_of(const RunSetup& setup, double step_seconds, int64_t global_batch) {
  const Program& program = setup.session->programs.train;
  const double peak = setup.peak_flops_per_second * program.mesh.size() * step_seconds;
  const double share = static_cast<double>(global_batch) / static_cast<double>(program.global_batch);
  return peak > 0 ? program.model_flops * share / peak : 0;
}

double largest(Communicator& communicator, const Session& session, double value) {
  communicator.all_reduce(&value, 1, DType::f64, ReduceKind::max, world_group(session));
  return value;
}

}  // namespace foresail
