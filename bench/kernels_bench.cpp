// Speed of the cpu kernels at the shapes of small and mid-sized models, on the threads given by --threads=N (default
// 1). Prints FLOP/s and bytes/s after the op table's counts; the peers are the matrix products and the memcpy of the
// same run:
//   bench_kernels --threads=1 --benchmark_filter=attention
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"
#include "kernels/device.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

struct FreeAligned {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, FreeAligned>;

Buffer allocate(int64_t bytes) { return Buffer(std::aligned_alloc(64, static_cast<size_t>((bytes + 127) / 64 * 64))); }

Buffer random_buffer(const TensorType& type, int64_t vocabulary) {
  Buffer buffer = allocate(type.bytes());
  std::mt19937 generator(7);
  if (type.dtype == DType::i32) {
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(std::max<int64_t>(1, vocabulary) - 1));
    for (int64_t i = 0; i < type.elements(); ++i) static_cast<int32_t*>(buffer.get())[i] = token(generator);
  } else if (type.dtype == DType::f64) {
    for (int64_t i = 0; i < type.elements(); ++i) static_cast<double*>(buffer.get())[i] = 1;
  } else {
    std::uniform_real_distribution<float> value(0.05f, 1.0f);
    for (int64_t i = 0; i < type.elements(); ++i) static_cast<float*>(buffer.get())[i] = value(generator);
  }
  return buffer;
}

void run_operator(benchmark::State& state, const OpInstance& op, int threads) {
  const auto device = make_cpu_device(threads);
  const auto kernel = device->bind(op);
  const int64_t vocabulary = op.kind == OpKind::embedding            ? op.inputs[1].shape[0]
                             : op.kind == OpKind::embedding_backward ? op.outputs[0].shape[0]
                                                                     : op.attributes.vocabulary;
  std::vector<Buffer> buffers;
  std::vector<void*> inputs, outputs;
  for (const auto& type : op.inputs) inputs.push_back(buffers.emplace_back(random_buffer(type, vocabulary)).get());
  for (const auto& type : op.outputs) outputs.push_back(buffers.emplace_back(random_buffer(type, vocabulary)).get());
  // A loss written over its logits would be measured on exponentials of exponentials: its operands stay apart.
  const Buffer workspace = allocate(kernel->workspace_bytes());
  StepInputs step;
  step.inverse_valid_tokens = 1e-3;
  step.learning_rate = 1e-6;
  KernelArguments arguments{inputs, outputs, workspace.get(), {}};
  arguments.context.step = &step;
  kernel->run(arguments);
  for (auto _ : state) kernel->run(arguments);
  using benchmark::Counter;
  state.counters["FLOP/s"] = Counter(flops_of(op), Counter::kIsIterationInvariantRate);
  state.counters["B/s"] = Counter(bytes_of(op), Counter::kIsIterationInvariantRate);
}

TensorType real(std::vector<int64_t> shape) { return {DType::f32, std::move(shape)}; }
TensorType ids(int64_t count) { return {DType::i32, {count}}; }
TensorType exact(int64_t count) { return {DType::f64, {count}}; }

/// Sizes of a model and its micro-batch.
struct Shape {
  const char* name;
  int64_t sequences, length, hidden, heads, kv_heads, head_dim, ffn, vocabulary;
};

constexpr Shape kShapes[] = {
    {"small", 8, 256, 384, 6, 6, 64, 1024, 256},      // a 12 M parameter model over bytes
    {"gpt2", 2, 1024, 768, 12, 12, 64, 3072, 50257},  // GPT-2
    {"llama1b", 1, 2048, 2048, 16, 4, 128, 5632, 32000},
};

std::vector<OpInstance> operators_of(const Shape& s) {
  OpAttributes a;
  a.sequence_length = s.length;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads;
  a.head_dim = s.head_dim;
  a.scale = 0.125;
  a.epsilon = 1e-5;
  a.vocabulary = s.vocabulary;
  a.rope_theta = 10000;
  a.decay = true;
  OpAttributes dropping = a;
  dropping.probability = 0.1;
  const int64_t rows = s.sequences * s.length, qkv_width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const auto x = real({rows, s.hidden}), w = real({s.hidden}), stat = real({rows}), qkv = real({rows, qkv_width});
  const auto o = real({rows, s.heads * s.head_dim}), lse = real({s.sequences, s.heads, s.length});
  const auto f = real({rows, s.ffn}), gu = real({rows, 2 * s.ffn}), up = real({2 * s.ffn, s.hidden});
  const auto scores = real({s.sequences, s.heads, s.length, s.length}), table = real({s.length, s.head_dim / 2, 2});
  const auto logits = real({rows, s.vocabulary}), embedding = real({s.vocabulary, s.hidden});
  const auto flat = real({12 * s.hidden * s.hidden});
  return {
      {OpKind::linear, a, {x, up}, {gu}},
      {OpKind::linear_backward_input, a, {gu, up}, {x}},
      {OpKind::linear_backward_weight, a, {gu, x}, {up}},
      {OpKind::attention, a, {qkv}, {o, lse}},
      {OpKind::attention_backward, a, {o, qkv, o, lse}, {qkv}},
      {OpKind::attention, dropping, {qkv}, {o, lse}},
      {OpKind::attention_scores, a, {qkv}, {scores}},
      {OpKind::attention_softmax, a, {scores}, {scores}},
      {OpKind::attention_context, a, {scores, qkv}, {o}},
      {OpKind::attention_scores_backward, a, {scores, qkv}, {qkv}},
      {OpKind::attention_context_backward, a, {o, scores, qkv}, {scores, qkv}},
      {OpKind::rope, a, {qkv, table}, {qkv}},
      {OpKind::rms_norm, a, {x, w}, {x, stat}},
      {OpKind::add_rms_norm, a, {x, x, w}, {x, x, stat}},
      {OpKind::rms_norm_backward, a, {x, x, w, stat, x}, {x, w}},
      {OpKind::add_layer_norm, a, {x, x, w, w}, {x, x, stat, stat}},
      {OpKind::layer_norm_backward, a, {x, x, w, stat, stat, x}, {x, w, w}},
      {OpKind::swiglu, a, {gu}, {f}},
      {OpKind::swiglu_backward, a, {f, gu}, {gu}},
      {OpKind::bias_gelu, a, {f, real({s.ffn})}, {f}},
      {OpKind::bias_gelu_backward, a, {f, f, real({s.ffn})}, {f}},
      {OpKind::bias_backward, a, {f}, {real({s.ffn})}},
      {OpKind::add, a, {x, x}, {x}},
      {OpKind::dropout, dropping, {x}, {x}},
      {OpKind::embedding, a, {ids(rows), embedding}, {x}},
      {OpKind::embedding_backward, a, {x, ids(rows)}, {embedding}},
      {OpKind::cross_entropy, a, {logits, ids(rows)}, {logits, exact(1)}},
      {OpKind::adamw, a, {flat, exact(4)}, {flat, flat, flat}},
      {OpKind::squared_norm, a, {flat}, {exact(1)}},
      {OpKind::fill_zero, a, {}, {flat}},
  };
}

void copy_memory(benchmark::State& state) {
  const int64_t bytes = 256 << 20;
  const Buffer from = random_buffer(real({bytes / 4}), 1), to = random_buffer(real({bytes / 4}), 1);
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), static_cast<size_t>(bytes));
    benchmark::DoNotOptimize(to.get());
  }
  state.counters["B/s"] = benchmark::Counter(2.0 * bytes, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace
}  // namespace foresail

int main(int argc, char** argv) {
  using namespace foresail;
  benchmark::Initialize(&argc, argv);
  int threads = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with("--threads=")) threads = std::max(1, std::atoi(argv[i] + 10));
  }
  set_thread_count(threads);
  benchmark::RegisterBenchmark("memcpy", copy_memory);
  for (const Shape& shape : kShapes) {
    for (const OpInstance& op : operators_of(shape)) {
      const std::string name = std::string(shape.name) + "/" + signature(op);
      auto* registered = benchmark::RegisterBenchmark(
          name.c_str(), [op, threads](benchmark::State& state) { run_operator(state, op, threads); });
      registered->Unit(benchmark::kMicrosecond);
      if (threads > 1) registered->UseRealTime();  // one thread: its own time, whatever else runs
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
