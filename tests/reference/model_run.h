// A fixture's model, compiled for one rank and ready to be stepped.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "program/compile.h"
#include "runtime/executor/executor.h"
#include "tests/reference/fixture.h"

namespace foresail::testing {

/// How the model is run; every combination must give PyTorch's numbers.
struct RunSettings {
  std::string back_end = "reference";  ///< "reference" (f64) or "cpu" (f32)
  int64_t micro_batch = 2;             ///< 1: the batch of two is accumulated
  bool fused_kernels = true;
  bool unfused_attention = false;
  Recompute recompute = Recompute::none;
};

class ModelRun {
 public:
  ModelRun(const Fixture& fixture, const RunSettings& settings);

  /// Parameters from a Hugging Face folder in place of the fixture's.
  void take_weights(const std::filesystem::path& folder);
  /// One optimizer step (1-based number) on a batch; metrics as the step left them.
  StepMetrics step(int64_t number, const FixtureBatch& batch);
  /// Every logical tensor once, in file orientation.
  Tensors parameters() const { return read(program().arena.parameters); }
  Tensors gradients() const { return read(program().arena.gradients); }
  const Program& program() const { return programs_.train; }

 private:
  void set_parameters();
  Tensors read(const Segment& segment) const;

  ModelSpec model_;
  Job job_;
  ProgramSet programs_;
  std::vector<ParameterSlice> slices_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace foresail::testing
