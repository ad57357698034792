// A dataset and a plan of a model of some thousand parameters, made by hand for one rank of the cpu back end: what train,
// stress and sample are tested on.
#pragma once

#include <filesystem>

#include "spec/plan.h"

namespace foresail::testing {

/// A folder of its own, removed at the end: data.bin/.idx/.dataset.json, plan.json.
class SmallPlan {
 public:
  SmallPlan();
  ~SmallPlan();
  SmallPlan(const SmallPlan&) = delete;
  SmallPlan& operator=(const SmallPlan&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path data() const { return folder_ / "data"; }
  std::filesystem::path path() const { return folder_ / "plan.json"; }
  std::filesystem::path run(const char* name = "run") const { return folder_ / name; }

  Plan plan;     ///< change it, then
  void write();  ///< write it again

 private:
  std::filesystem::path folder_;
};

}  // namespace foresail::testing
