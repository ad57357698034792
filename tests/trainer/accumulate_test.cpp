// Why gradients can be accumulated in another element type: what one step of many micro-batches leaves in them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/initialise.h"
#include "runtime/trainer/session.h"
#include "tests/trainer/small_run.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

constexpr int64_t kMicroBatches = 2048;

struct Step {
  std::vector<double> gradients;
  double norm = 0;
};

std::vector<double> numbers(const std::byte* base, DType dtype, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        dtype == DType::f64 ? reinterpret_cast<const double*>(base)[i] : reinterpret_cast<const float*>(base)[i];
  }
  return values;
}

/// The parameters of the oracle are those that single precision holds, so that only arithmetic differs.
void round_parameters(Session& session) {
  const Program& program = session.programs.train;
  if (program.precision.parameter != DType::f64) return;
  auto* parameters = reinterpret_cast<double*>(session.arena->data() + program.arena.parameters.offset);
  for (int64_t i = 0; i < program.parameter_elements; ++i) parameters[i] = static_cast<float>(parameters[i]);
}

/// The gradients of the first step, as norm and optimizer read them.
Step first_step(const std::string& device, const std::string& strategy) {
  SessionRequest request = testing::small_request();
  request.job.global_batch = kMicroBatches;
  request.job.precision = device == "reference" ? "fp64" : "fp32";
  request.strategy = parse_strategy(strategy).strategy;
  request.target.back_end = device;
  Step step;
  const auto errors = testing::run_world(1, [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device(device, 1));
    const Program& program = session->programs.train;
    initialise(program, session->slices, static_cast<uint64_t>(request.job.seed), session->arena->data());
    round_parameters(*session);
    session->switch_to(*session->train);
    std::vector<int32_t> sample(static_cast<size_t>(2 * request.job.sequence_length));
    fill_batch(*session->train, program, session->place, 0, testing::rule_samples(request.model.vocabulary, 5), sample);
    session->train->step_inputs() = step_inputs_at(request.job, 1, 1, kMicroBatches * request.job.sequence_length);
    session->train->step();
    step.norm = session->train->metrics().grad_norm;
    step.gradients = numbers(session->arena->data() + program.arena.gradients.offset, program.accumulate_dtype,
                             program.parameter_elements);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "") << device << " " << strategy;
  return step;
}

/// Distance of the gradients, relative to their norm.
double error_of(const Step& step, const Step& exact) {
  double distance = 0, squares = 0;
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    distance += std::pow(step.gradients.at(i) - exact.gradients[i], 2);
    squares += std::pow(exact.gradients[i], 2);
  }
  return std::sqrt(distance / squares);
}

TEST(AccumulateDtype, SumsOfManyMicroBatchesAreNearerToExactOnesInDouble) {
  const Step exact = first_step("reference", "micro_batch=1");
  const Step single = first_step("cpu", "micro_batch=1"),
             wide = first_step("cpu", "micro_batch=1,accumulate_dtype=f64");
  ASSERT_EQ(wide.gradients.size(), exact.gradients.size());
  std::cout << kMicroBatches << " micro-batches: gradients off by " << error_of(single, exact) << " in f32, "
            << error_of(wide, exact) << " accumulated in f64\n";
  EXPECT_LT(error_of(wide, exact), 0.1 * error_of(single, exact));
  EXPECT_NEAR(wide.norm, exact.norm, 1e-7 * exact.norm);
}

TEST(AccumulateDtype, TheReferenceDeviceRoundsToSingleAsTold) {
  const Step exact = first_step("reference", "micro_batch=1");
  const Step rounded = first_step("reference", "micro_batch=1,accumulate_dtype=f32");
  EXPECT_GT(error_of(rounded, exact), 1e-8);
  EXPECT_LT(error_of(rounded, exact), 1e-4);
  for (const double gradient : rounded.gradients)
    ASSERT_EQ(gradient, static_cast<double>(static_cast<float>(gradient)));
}

}  // namespace
}  // namespace foresail
