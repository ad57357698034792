#include "tests/equivalence/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/parallel.h"
#include "core/philox.h"
#include "program/check.h"
#include "program/compile.h"
#include "runtime/executor/executor.h"
#include "runtime/trainer/batch.h"
#include "runtime/trainer/initialise.h"

namespace foresail::testing {
namespace {

constexpr std::byte kPoison{0xA5};

/// Sequences that a model can learn: arithmetic progressions modulo the vocabulary, with some noise.
void read_sample(int64_t index, int64_t vocabulary, std::span<int32_t> tokens, std::span<int32_t> targets) {
  const auto token = [&](int64_t position) {
    const uint32_t noise = random_bits(99, static_cast<uint64_t>(index), static_cast<uint64_t>(position));
    if (noise % 16 == 0) return static_cast<int32_t>(noise / 16 % vocabulary);
    return static_cast<int32_t>((3 * index + (1 + index % 3) * position) % vocabulary);
  };
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = token(static_cast<int64_t>(i));
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = token(static_cast<int64_t>(i) + 1);
}

std::unique_ptr<Device> device_named(const std::string& name) {
  return name == "reference" ? make_reference_device() : make_cpu_device(1);
}

double element_at(const std::byte* base, DType dtype, int64_t index) {
  if (dtype == DType::f64) {
    double value;
    std::memcpy(&value, base + index * 8, 8);
    return value;
  }
  float value;
  std::memcpy(&value, base + index * 4, 4);
  return value;
}

/// One rank's part in an experiment.
class Run {
 public:
  Run(const Experiment& experiment, Communicator& communicator, const Fault& fault)
      : experiment_(experiment), communicator_(communicator), fault_(fault), mesh_(Mesh::of(experiment.strategy)) {}

  Outcome run();

 private:
  bool takes_part() const { return communicator_.rank() < mesh_.size(); }
  void build();
  void train();
  Tensors local_tensors(const Segment& segment, DType dtype) const;
  void gather(Tensors& tensors, const char* what);
  void share(std::vector<double>& values);
  double evaluate_now();
  void poison_gaps();
  void check_gaps();

  const Experiment& experiment_;
  Communicator& communicator_;
  const Fault& fault_;
  Mesh mesh_;
  MeshCoordinate place_;
  GroupId everyone_ = 0;
  ProgramSet programs_;
  std::vector<ParameterSlice> slices_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Executor> executor_, evaluation_;
  std::vector<Segment> gaps_;
  Outcome outcome_;
};

void Run::build() {
  place_ = mesh_.coordinate_of(communicator_.rank());
  device_ = device_named(experiment_.device);
  Target target;
  target.back_end = experiment_.device;
  target.fused_kernels = experiment_.fused_kernels;
  target.unfused_attention = experiment_.unfused_attention;
  const WorkspaceOf workspace_of = [&](const OpInstance& op) { return device_->workspace_bytes(op); };
  programs_ = compile(experiment_.model, experiment_.job, experiment_.strategy, target, place_.pp, workspace_of);
  slices_ = parameter_slices(experiment_.model, experiment_.strategy, place_.pp, place_.tp);
  for (const Program* program : {&programs_.train, &programs_.evaluate}) {
    const auto problems = check_program(*program);
    outcome_.violations.insert(outcome_.violations.end(), problems.begin(), problems.end());
  }
  const int64_t bound = liveness_bound(programs_.train);
  if (static_cast<double>(programs_.train.arena.bytes) > 1.02 * static_cast<double>(bound)) {
    outcome_.violations.push_back(
        fmt::format("arena of {} bytes is looser than 1.02 x {}", programs_.train.arena.bytes, bound));
  }
  if (fault_.program) fault_.program(programs_.train, place_);
  if (fault_.device) device_ = fault_.device(std::move(device_));
  arena_ = std::make_unique<Arena>(std::max(programs_.train.arena.bytes, programs_.evaluate.arena.bytes));
  poison_gaps();
  executor_ = std::make_unique<Executor>(programs_.train, *device_, &communicator_, *arena_, communicator_.rank());
  evaluation_ = std::make_unique<Executor>(programs_.evaluate, *device_, &communicator_, *arena_, communicator_.rank());
  initialise(programs_.train, slices_, static_cast<uint64_t>(experiment_.job.seed), arena_->data());
}

/// Bytes that neither Program uses (evaluation lives in the same arena) must stay as they are.
void Run::poison_gaps() {
  std::vector<bool> used(static_cast<size_t>(arena_->bytes()), true);
  for (const Segment& gap : arena_gaps(programs_.train)) {
    std::fill_n(used.begin() + gap.offset, gap.bytes, false);
  }
  std::vector<bool> evaluation_used(used.size(), false);
  std::fill_n(evaluation_used.begin(), programs_.evaluate.arena.bytes, true);
  for (const Segment& gap : arena_gaps(programs_.evaluate)) {
    std::fill_n(evaluation_used.begin() + gap.offset, gap.bytes, false);
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] || evaluation_used[i]) continue;
    if (gaps_.empty() || gaps_.back().offset + gaps_.back().bytes != static_cast<int64_t>(i)) {
      gaps_.push_back({static_cast<int64_t>(i), 0});
    }
    ++gaps_.back().bytes;
    arena_->data()[i] = kPoison;
  }
}

void Run::check_gaps() {
  for (const Segment& gap : gaps_) {
    const std::byte* begin = arena_->data() + gap.offset;
    if (std::any_of(begin, begin + gap.bytes, [](std::byte value) { return value != kPoison; })) {
      outcome_.violations.push_back(
          fmt::format("bytes [{}, +{}) of the arena belong to no buffer but were written", gap.offset, gap.bytes));
      return;
    }
  }
}

Tensors Run::local_tensors(const Segment& segment, DType dtype) const {
  Tensors tensors;
  const std::byte* base = arena_->data() + segment.offset;
  for (const ParameterSlice& slice : slices_) {
    const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
    auto& values = tensors[slice.tensor];
    values.resize(static_cast<size_t>(slice.shape[0] * columns));
    int64_t element = slice.element_offset;
    for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
      for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
        values[static_cast<size_t>(row * columns + column)] = element_at(base, dtype, element++);
      }
    }
  }
  return tensors;
}

/// Global tensors from every owner's rectangles; holders of copies compare theirs with the result.
void Run::gather(Tensors& tensors, const char* what) {
  const Tensors mine = tensors;
  Tensors global;
  // Every rank knows every tensor's size: slices of all stages of tensor rank 0 name them all.
  for (int stage = 0; stage < mesh_.pp; ++stage) {
    for (const ParameterSlice& slice : parameter_slices(experiment_.model, experiment_.strategy, stage, 0)) {
      global[slice.tensor].resize(static_cast<size_t>(slice.shape[0] * (slice.shape.size() > 1 ? slice.shape[1] : 1)));
    }
  }
  const auto for_elements = [&](const ParameterSlice& slice, const auto& body) {
    const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
    for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
      for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
        body(static_cast<size_t>(row * columns + column));
      }
    }
  };
  if (takes_part() && place_.dp == 0) {
    for (const ParameterSlice& slice : slices_) {
      if (slice.second_holder || (slice.replicated && place_.tp != 0)) continue;
      for_elements(slice, [&](size_t i) { global[slice.tensor][i] = mine.at(slice.tensor)[i]; });
    }
  }
  for (auto& [name, values] : global) share(values);
  if (takes_part()) {
    for (const ParameterSlice& slice : slices_) {
      bool equal = true;
      for_elements(slice, [&](size_t i) { equal &= global[slice.tensor][i] == mine.at(slice.tensor)[i]; });
      if (!equal) outcome_.violations.push_back(fmt::format("{} of {} differ between its holders", what, slice.tensor));
    }
  }
  tensors = std::move(global);
}

void Run::share(std::vector<double>& values) {
  communicator_.all_reduce(values.data(), static_cast<int64_t>(values.size()), DType::f64, ReduceKind::sum, everyone_);
}

double Run::evaluate_now() {
  evaluation_->startup();
  evaluation_->step_inputs() = executor_->step_inputs();
  evaluation_->step();
  const double loss = evaluation_->metrics().loss;
  executor_->startup();
  return loss;
}

void Run::train() {
  executor_->startup();
  const int64_t sequence = experiment_.job.sequence_length;
  std::vector<int32_t> unused(static_cast<size_t>(sequence));
  const SampleReader reader = [&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
    read_sample(index, experiment_.model.vocabulary, tokens, targets);
  };
  fill_batch(*executor_, programs_.train, place_.dp, 0, reader, unused);
  const Segment& parameters = programs_.train.arena.parameters;
  const DType parameter = programs_.train.precision.parameter;
  const Tensors before = local_tensors(parameters, parameter);
  const int64_t valid = experiment_.job.global_batch * sequence;
  const auto set_inputs = [&](int64_t step) {
    executor_->step_inputs() = step_inputs_at(experiment_.job, step, experiment_.steps, valid);
    if (fault_.step_inputs) fault_.step_inputs(executor_->step_inputs(), place_);
  };
  set_inputs(1);
  outcome_.evaluations.push_back(evaluate_now());
  for (int64_t step = 1; step <= experiment_.steps; ++step) {
    set_inputs(step);
    executor_->step();
    const StepMetrics metrics = executor_->metrics();
    outcome_.losses.push_back(metrics.loss);
    outcome_.grad_norms.push_back(metrics.grad_norm);
    if (step == 1) {
      outcome_.gradients = local_tensors(programs_.train.arena.gradients, programs_.train.precision.gradient);
    }
  }
  outcome_.evaluations.push_back(evaluate_now());
  outcome_.updates = local_tensors(parameters, parameter);
  for (auto& [name, values] : outcome_.updates) {
    for (size_t i = 0; i < values.size(); ++i) values[i] -= before.at(name)[i];
  }
  check_gaps();
}

Outcome Run::run() {
  set_thread_count(1);
  MeshGroups groups = mesh_groups(mesh_);
  std::vector<int> all(static_cast<size_t>(communicator_.size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  groups.members.push_back(all);
  communicator_.create_groups(groups.members);
  everyone_ = static_cast<GroupId>(groups.members.size()) - 1;
  if (takes_part()) {
    build();
    train();
  }
  gather(outcome_.gradients, "gradients");
  gather(outcome_.updates, "updates");
  // Rank 0 takes part in every mesh: its scalars go to everyone.
  for (auto* values : {&outcome_.losses, &outcome_.grad_norms, &outcome_.evaluations}) {
    values->resize(values == &outcome_.evaluations ? 2 : static_cast<size_t>(experiment_.steps));
    communicator_.broadcast(values->data(), static_cast<int64_t>(values->size() * sizeof(double)), 0, everyone_);
  }
  std::vector<double> violated{outcome_.violations.empty() ? 0.0 : 1.0};
  share(violated);
  if (violated[0] > 0 && outcome_.violations.empty()) {
    outcome_.violations.push_back(fmt::format("{} other ranks report violations", violated[0]));
  }
  return std::move(outcome_);
}

}  // namespace

Outcome run_experiment(const Experiment& experiment, Communicator& communicator, const Fault& fault) {
  return Run(experiment, communicator, fault).run();
}

}  // namespace foresail::testing
