// Programs of the compiler with overlap, on ranks that are threads: queues beside each other give the bits of serial
// execution, for every strategy that puts work on another queue.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/philox.h"
#include "program/compile.h"
#include "runtime/executor/executor.h"
#include "tests/executor/thread_world.h"

namespace foresail {
namespace {

using testing::run_thread_world;
using testing::ThreadWorldCommunicator;

ModelSpec four_layers() {
  ModelSpec model;
  model.name = "four-layers";
  model.family = "llama";
  model.layers = 4, model.hidden = 16, model.heads = 4, model.kv_heads = 2, model.head_dim = 4;
  model.ffn = 24, model.vocabulary = 29, model.max_positions = 16;
  model.tied_embeddings = true;
  return model;
}

Job eight_sequences() {
  Job job;
  job.sequence_length = 8;
  job.global_batch = 8;
  job.precision = "fp64";
  return job;
}

/// Numbers go by tensor and place in it, so that all ranks hold one model.
void initialise_parameters(const Program& program, const RankSlices& slices, std::byte* arena) {
  auto* parameters = reinterpret_cast<double*>(arena + program.arena.parameters.offset);
  for (const ParameterSlice& slice : slices.parameters) {
    const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
    for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
      for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
        const auto draw = static_cast<uint64_t>(row * columns + column);
        const double value = 0.1 * random_normal(1, std::hash<std::string>{}(slice.tensor), draw);
        parameters[slice.element_offset + (row - slice.row_begin) * slice.row_stride + column - slice.column_begin] =
            slice.init.kind == InitKind::ones ? 1 + value : value;
      }
    }
  }
}

void fill_data(Executor& executor, const Program& program, int rank) {
  for (int64_t m = 0; m < program.micro_batches; ++m) {
    int32_t at = static_cast<int32_t>(rank * 1000 + m * 100);
    for (int32_t& token : executor.tokens(m)) ++at, token = (at * at + 3 * at) % 29;
    for (int32_t& target : executor.targets(m)) ++at, target = (at * at + 5 * at) % 29;
  }
  executor.step_inputs().inverse_valid_tokens = 1.0 / 64;
  executor.step_inputs().learning_rate = 1e-2;
  executor.step_inputs().clip_norm = 1.0;
}

/// A reference device whose kernels start a little late now and then, so that queues overtake each other.
class LateDevice final : public Device {
 public:
  std::string_view name() const override { return device_->name(); }
  bool supports(OpKind kind, DType dtype) const override { return device_->supports(kind, dtype); }
  int64_t workspace_bytes(const OpInstance& op) override { return device_->workspace_bytes(op); }
  std::unique_ptr<Kernel> bind(const OpInstance& op) override {
    return std::make_unique<LateKernel>(device_->bind(op));
  }

 private:
  class LateKernel final : public Kernel {
   public:
    explicit LateKernel(std::unique_ptr<Kernel> kernel) : kernel_(std::move(kernel)) {}
    void run(const KernelArguments& arguments) override {
      static std::atomic<uint32_t> runs{0};
      const uint32_t run = runs.fetch_add(1, std::memory_order_relaxed);
      if (run * 2654435761u % 13 == 0) std::this_thread::sleep_for(std::chrono::microseconds(run * 40503u % 127));
      kernel_->run(arguments);
    }
    int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

   private:
    std::unique_ptr<Kernel> kernel_;
  };
  std::unique_ptr<Device> device_ = make_reference_device();
};

struct RankResult {
  std::vector<std::byte> arena;
  double loss = 0, grad_norm = 0;
  QueueMode mode{};
};

/// What every rank holds after three steps, scratch included.
std::vector<RankResult> run_all(const Strategy& strategy, bool serial) {
  const ModelSpec model = four_layers();
  const Mesh mesh = mesh_of(model, strategy);
  std::vector<RankResult> results(static_cast<size_t>(mesh.size()));
  run_thread_world(mesh.size(), [&](ThreadWorldCommunicator& communicator) {
    LateDevice device;
    const MeshCoordinate place = mesh.coordinate_of(communicator.rank());
    Target target;
    target.back_end = "reference";
    target.blocking_communication = false;  // what lies inside a layer goes to a queue of its own too
    const auto workspace_of = [&](const OpInstance& op) { return device.workspace_bytes(op); };
    const Program program = compile(model, eight_sequences(), strategy, target, place.pp, workspace_of).train;
    communicator.create_groups(mesh_groups(mesh).members);
    Arena arena(program.arena.bytes);
    Executor executor(program, device, &communicator, arena, communicator.rank(),
                      {.serialise_queues = serial, .dependencies = {}});
    initialise_parameters(program, rank_slices(model, strategy, place), arena.data());
    executor.startup();
    fill_data(executor, program, communicator.rank());
    for (int step = 1; step <= 3; ++step) {
      StepInputs& inputs = executor.step_inputs();
      inputs.step = step;
      inputs.beta1_power = std::pow(inputs.beta1, step);
      inputs.beta2_power = std::pow(inputs.beta2, step);
      executor.step();
    }
    RankResult& result = results[static_cast<size_t>(communicator.rank())];
    result.arena.assign(arena.data(), arena.data() + arena.bytes());
    result.loss = executor.metrics().loss;
    result.grad_norm = executor.metrics().grad_norm;
    result.mode = executor.queue_mode();
  });
  return results;
}

class CompiledQueues : public ::testing::TestWithParam<const char*> {};

TEST_P(CompiledQueues, GiveTheBitsOfSerialExecution) {
  const Strategy strategy = parse_strategy(GetParam()).strategy;
  const auto serial = run_all(strategy, true);
  for (int repetition = 0; repetition < 2; ++repetition) {
    const auto concurrent = run_all(strategy, false);
    for (size_t rank = 0; rank < serial.size(); ++rank) {
      EXPECT_EQ(serial[rank].mode, QueueMode::serial);
      EXPECT_EQ(concurrent[rank].mode, QueueMode::concurrent);
      EXPECT_TRUE(concurrent[rank].arena == serial[rank].arena) << "rank " << rank;
    }
  }
  EXPECT_TRUE(std::isfinite(serial[0].grad_norm) && serial[0].grad_norm > 0);
  EXPECT_GT(serial.back().loss, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, CompiledQueues,
    ::testing::Values("dp=2,overlap=true", "dp=2,overlap=true,bucket_bytes=4096", "dp=2,zero_stage=1,overlap=true",
                      "dp=2,zero_stage=1,overlap=true,bucket_bytes=4096", "dp=2,zero_stage=2,overlap=true",
                      "dp=2,zero_stage=3,overlap=true", "dp=4,zero_stage=3,zero_group=2,overlap=true",
                      "dp=2,zero_stage=3,overlap=true,recompute=full", "cp=2,overlap=true",
                      "cp=2,context=all_to_all,overlap=true", "tp=2,sequence_parallel=true,overlap=true",
                      "pp=2,overlap=true", "pp=2,schedule=gpipe,overlap=true",
                      "pp=2,virtual_stages=2,schedule=interleaved,overlap=true", "pp=2,schedule=zb-h1,overlap=true",
                      "pp=2,virtual_stages=2,schedule=zb-v,overlap=true", "pp=2,dp=2,zero_stage=1,overlap=true",
                      "pp=2,cp=2,zero_stage=2,overlap=true"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) {
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
      }
      return name;
    });

}  // namespace
}  // namespace foresail
