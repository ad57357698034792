// What `train` and `stress` open alike in every rank: the plan, the data, the session.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "runtime/data/sample_source.h"
#include "runtime/trainer/trainer.h"
#include "spec/plan.h"
#include "workflow/train.h"

namespace foresail {

struct RunSetup {
  Plan plan;
  std::string plan_text, plan_digest;
  std::unique_ptr<TokenDataset> data;
  std::unique_ptr<SampleSource> training, validation;  ///< validation: null if the job holds nothing out
  std::unique_ptr<Session> session;
  RunState identity;                 ///< what checkpoints say about this run
  int64_t arena_bytes = 0;           ///< allocated, largest of any rank
  double peak_flops_per_second = 0;  ///< of one device, as the plan's MFU used it; 0: unknown
};

/// The dataset prefix that was given, or the job's. Throws bad_input if there is none.
std::filesystem::path data_prefix(const std::filesystem::path& given, const Plan& plan);

/// Plan, data and vocabulary fit together; needs no ranks and allocates nothing. Throws bad_input.
RankCount check_setup(const std::filesystem::path& plan, const std::filesystem::path& data, const std::string& device);

/// Collective. Throws bad_input.
RunSetup open_run(const std::filesystem::path& plan, const std::filesystem::path& data, const std::string& device,
                  Communicator& communicator);

/// Throws bad_input unless the arena that was allocated is the predicted one.
void require_predicted_arena(const RunSetup& setup, const std::filesystem::path& plan);

SampleReader reader_of(const SampleSource& source);

/// MFU of a step of `global_batch` sequences over all devices; 0 if the peak is unknown.
double mfu_of(const RunSetup& setup, double step_seconds, int64_t global_batch);

/// Of all ranks. Collective.
double largest(Communicator& communicator, const Session& session, double value);

}  // namespace foresail
