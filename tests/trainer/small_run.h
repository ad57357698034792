// A model of a few thousand parameters on the reference device, with data that follows a rule, for tests of whole runs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "runtime/trainer/trainer.h"

namespace foresail::testing {

SessionRequest small_request();
SessionRequest small_expert_request();  ///< the same model with four experts in every layer

/// Samples that a model can learn: each next token is a fixed function of the last one, most of the time.
SampleReader rule_samples(int64_t vocabulary, uint64_t seed);

/// A folder of its own that is removed at the end of its life.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TrainerOptions small_options(const std::filesystem::path& run, int64_t steps);

/// One rank's run from its options on the request's back end: the report and the parameters and moments it ends with.
struct SmallResult {
  TrainerReport report;
  std::vector<std::byte> state;
};
SmallResult run_small(const SessionRequest& request, const TrainerOptions& options);

}  // namespace foresail::testing
