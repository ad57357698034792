#include "tests/program/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>

#include "core/philox.h"
#include "kernels/device.h"
#include "ops/op_table.h"
#include "ops/zigzag.h"
#include "program/fuse.h"
#include "program/ring.h"
#include "program/units.h"

namespace foresail::testing {
namespace {

constexpr int64_t kLayer = 3;            // any
constexpr int64_t kSequencesBefore = 4;  // this micro-batch is not the first of the step

double random_element(const std::string& tensor, int64_t position) {
  return random_normal(std::hash<std::string>{}(tensor), 0, static_cast<uint64_t>(position));
}

Graph graph_of(const LayerRun& run) {
  GraphOptions options;
  options.micro_batch = run.micro_batch;
  options.sequence_length = run.sequence_length;
  options.precision = kFloat64Precision;
  options.unfused_attention = run.unfused_attention;
  options.context_parallel = run.cut.cp;
  options.kv_copies = run.cut.kv_copies;
  ModelGraphs graphs = build_graphs(run.model, options);
  if (run.kind == LayerKind::embedding) return graphs.embedding;
  return run.kind == LayerKind::block ? graphs.block : graphs.head;
}

OpInstance instance_of(const Graph& graph, const Node& node) {
  OpInstance op{node.kind, node.attributes, {}, {}};
  for (const int input : node.inputs) op.inputs.push_back(graph.tensors[input].type());
  for (const int output : node.outputs) op.outputs.push_back(graph.tensors[output].type());
  return op;
}

void add_to(std::vector<double>& sum, const std::vector<double>& terms) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += terms[i];
}

class Lockstep {
 public:
  explicit Lockstep(const LayerRun& run);
  LayerResult result();

 private:
  int ranks() const { return static_cast<int>(run_.cut.tp * run_.cut.cp); }
  int tensor_rank(int rank) const { return rank % static_cast<int>(run_.cut.tp); }
  int context_rank(int rank) const { return rank / static_cast<int>(run_.cut.tp); }
  int64_t whole_row(int rank, int64_t local_row, bool rows_cut) const;
  bool has_cut_rows(const GraphTensor& tensor) const;
  void scatter_rows(int rank, int tensor, const std::string& name);
  void fill_parameters(int rank);
  void fill_inputs(int rank);
  double* data(int rank, int tensor);
  void run_op(const Node& node);
  void run_collective(const Node& node);
  std::vector<double> communicate(const Node& node, int rank);
  void reduce_gradients();
  void sum_over(const std::function<int(int rank)>& group, int64_t begin, int64_t end);
  void collect_rows(int tensor, std::vector<double>& whole);
  void collect_gradients(LayerResult& result);

  LayerRun run_;
  Differentiated layer_;
  Unit unit_;
  StepInputs step_;
  std::unique_ptr<Device> device_ = make_reference_device();
  std::vector<std::vector<double>> parameters_, gradients_;  // by rank: segments of the unit
  std::vector<std::map<int, std::vector<double>>> tensors_;  // by rank and tensor
};

Lockstep::Lockstep(const LayerRun& run) : run_(run) {
  Graph graph = shard(graph_of(run), run.cut);
  unit_ = place_weights(graph, {.cut = run.cut});
  if (run.fused) fuse_forward(graph);
  layer_ = differentiate(graph);
  if (run.fused) fuse_backward(layer_);
  if (run.cut.cp > 1) expand_ring(layer_, run.cut.cp);
  step_.step = 5;
  step_.seed = 11;
  step_.inverse_valid_tokens = 1.0 / 64;
  parameters_.assign(ranks(), std::vector<double>(unit_.elements));
  gradients_ = parameters_;
  tensors_.resize(ranks());
  for (int rank = 0; rank < ranks(); ++rank) {
    fill_parameters(rank);
    fill_inputs(rank);
  }
}

/// Row of the whole micro-batch that a rank's row is.
int64_t Lockstep::whole_row(int rank, int64_t local_row, bool rows_cut) const {
  const int64_t length = run_.sequence_length / run_.cut.cp;
  if (rows_cut) local_row += tensor_rank(rank) * run_.micro_batch * length / run_.cut.tp;
  const int64_t position = zigzag_position(context_rank(rank), run_.cut.cp, length, local_row % length);
  return local_row / length * run_.sequence_length + position;
}

bool Lockstep::has_cut_rows(const GraphTensor& tensor) const {
  return tensor.dims[0].size < run_.micro_batch * run_.sequence_length / run_.cut.cp;
}

void Lockstep::scatter_rows(int rank, int tensor, const std::string& name) {
  if (tensor < 0) return;
  const GraphTensor& type = layer_.graph.tensors[tensor];
  const int64_t columns = type.dims[1].size;
  for (int64_t row = 0; row < type.dims[0].size; ++row) {
    const int64_t from = whole_row(rank, row, has_cut_rows(type));
    for (int64_t c = 0; c < columns; ++c) {
      data(rank, tensor)[row * columns + c] = random_element(name, from * columns + c);
    }
  }
}

void Lockstep::fill_parameters(int rank) {
  for (const ParameterSlice& slice : slices_of(layer_.graph, unit_, 0, kLayer, run_.cut, tensor_rank(rank), {})) {
    const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
    const double mean = slice.init.kind == InitKind::ones ? 1 : 0;
    for (int64_t r = slice.row_begin; r < slice.row_end; ++r) {
      for (int64_t c = slice.column_begin; c < slice.column_end; ++c) {
        const int64_t at = slice.element_offset + (r - slice.row_begin) * slice.row_stride + c - slice.column_begin;
        parameters_[rank].at(at) = mean + 0.2 * random_element(slice.tensor, r * columns + c);
      }
    }
  }
}

void Lockstep::fill_inputs(int rank) {
  const Graph& graph = layer_.graph;
  scatter_rows(rank, graph.find(TensorRole::layer_input), "hidden states");
  scatter_rows(rank, graph.find(TensorRole::output_gradient), "output gradient");
  for (const TensorRole role : {TensorRole::tokens, TensorRole::targets}) {
    const int ids = graph.find(role);
    if (ids < 0) continue;
    const int64_t rows = graph.tensors[ids].dims[0].size;
    std::vector<int32_t> values(rows);
    for (int64_t row = 0; row < rows; ++row) {
      const auto bits = random_bits(static_cast<uint64_t>(role), 0, whole_row(rank, row, false));
      values[row] = static_cast<int32_t>(bits % run_.model.vocabulary);
      if (role == TensorRole::targets && bits % 7 == 0) values[row] = -1;
    }
    std::memcpy(data(rank, ids), values.data(), rows * sizeof(int32_t));
  }
  if (const int table = graph.find(TensorRole::constant); table >= 0) {
    const auto rope = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
      return node.collective == NodeCollective::none && (node.kind == OpKind::rope || node.kind == OpKind::latent_join);
    });
    Node make{OpKind::rope_table, NodeCollective::none, rope->attributes, {}, {table}, 0};
    if (rank == ranks() - 1) run_op(make);
  }
}

double* Lockstep::data(int rank, int tensor) {
  const GraphTensor& type = layer_.graph.tensors[tensor];
  if (type.role == TensorRole::weight) return parameters_[rank].data() + unit_.offsets[type.weight];
  if (type.role == TensorRole::weight_gradient) return gradients_[rank].data() + unit_.offsets[type.weight];
  std::vector<double>& values = tensors_[rank][tensor];
  if (values.empty()) values.resize(type.type().elements());
  return values.data();
}

void Lockstep::run_op(const Node& node) {
  const auto kernel = device_->bind(instance_of(layer_.graph, node));
  std::vector<double> workspace(kernel->workspace_bytes() / sizeof(double) + 1);
  for (int rank = 0; rank < ranks(); ++rank) {
    std::vector<void*> inputs, outputs;
    for (const int input : node.inputs) inputs.push_back(data(rank, input));
    for (const int output : node.outputs) outputs.push_back(data(rank, output));
    KernelArguments arguments{inputs, outputs, workspace.data(), {}};
    KernelContext& context = arguments.context;
    context.step = &step_;
    context.first_row = kSequencesBefore * run_.sequence_length;
    context.layer = run_.kind == LayerKind::block ? kLayer : -1;
    context.tensor_rank = tensor_rank(rank);
    context.tensor_size = static_cast<int32_t>(run_.cut.tp);
    context.context_rank = context_rank(rank);
    context.context_size = static_cast<int32_t>(run_.cut.cp);
    context.kv_copies = static_cast<int32_t>(run_.cut.kv_copies);
    kernel->run(arguments);
  }
}

/// What `rank` holds after the collective.
std::vector<double> Lockstep::communicate(const Node& node, int rank) {
  const int input = node.inputs[0];
  const int64_t size = layer_.graph.tensors[input].type().elements();
  const int tp = static_cast<int>(run_.cut.tp), cp = static_cast<int>(run_.cut.cp);
  const auto values_of = [&](int member) {
    const double* values = data(member, input);
    return std::vector<double>(values, values + size);
  };
  std::vector<double> result;
  switch (node.collective) {
    case NodeCollective::all_gather_tensor:
    case NodeCollective::all_gather_rows:
      for (int t = 0; t < tp; ++t) {
        const auto part = values_of(context_rank(rank) * tp + t);
        result.insert(result.end(), part.begin(), part.end());
      }
      return result;
    case NodeCollective::all_reduce_tensor:
    case NodeCollective::reduce_scatter_rows: {
      result.resize(size);
      for (int t = 0; t < tp; ++t) add_to(result, values_of(context_rank(rank) * tp + t));
      if (node.collective == NodeCollective::all_reduce_tensor) return result;
      const auto begin = result.begin() + tensor_rank(rank) * (size / tp);
      return {begin, begin + size / tp};
    }
    case NodeCollective::all_to_all_context:
      for (int c = 0; c < cp; ++c) {
        const auto part = values_of(c * tp + tensor_rank(rank));
        const auto begin = part.begin() + context_rank(rank) * (size / cp);
        result.insert(result.end(), begin, begin + size / cp);
      }
      return result;
    case NodeCollective::ring_shift_context:
      return values_of((context_rank(rank) + cp - 1) % cp * tp + tensor_rank(rank));
    case NodeCollective::all_reduce_context:
      result.resize(size);
      for (int c = 0; c < cp; ++c) add_to(result, values_of(c * tp + tensor_rank(rank)));
      return result;
    case NodeCollective::all_to_all_expert:
    case NodeCollective::all_gather_expert:
    case NodeCollective::reduce_scatter_expert:  // experts are cut in the equivalence suite
    case NodeCollective::none: break;
  }
  throw std::runtime_error("not a collective that ranks in lockstep know");
}

void Lockstep::run_collective(const Node& node) {
  const int output = node.outputs[0];
  for (int rank = 0; rank < ranks(); ++rank) {
    auto received = communicate(node, rank);
    if (static_cast<int64_t>(received.size()) != layer_.graph.tensors[output].type().elements()) {
      throw std::runtime_error("a collective's result has not the size of " + layer_.graph.tensors[output].name);
    }
    tensors_[rank][output] = std::move(received);
  }
}

/// Sums elements of the gradients over ranks with the same number.
void Lockstep::sum_over(const std::function<int(int rank)>& group, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    std::map<int, double> sums;
    for (int rank = 0; rank < ranks(); ++rank) sums[group(rank)] += gradients_[rank][i];
    for (int rank = 0; rank < ranks(); ++rank) gradients_[rank][i] = sums[group(rank)];
  }
}

void Lockstep::reduce_gradients() {
  const int tp = static_cast<int>(run_.cut.tp), copies = static_cast<int>(run_.cut.kv_copies);
  const auto sum_weight = [&](int weight, const std::function<int(int)>& group) {
    int64_t elements = 1;
    for (const Dim& dim : layer_.graph.weights[weight].dims) elements *= local_size(dim, run_.cut);
    sum_over(group, unit_.offsets[weight], unit_.offsets[weight] + elements);
  };
  for (const int weight : layer_.partial_weight_gradients) sum_weight(weight, [&](int rank) { return rank / tp; });
  for (const int weight : layer_.copied_weight_gradients) sum_weight(weight, [&](int rank) { return rank / copies; });
  sum_over([&](int rank) { return rank % tp; }, 0, unit_.elements);
}

void Lockstep::collect_rows(int tensor, std::vector<double>& whole) {
  if (tensor < 0) return;
  const GraphTensor& type = layer_.graph.tensors[tensor];
  const int64_t columns = type.dims[1].size;
  whole.assign(run_.micro_batch * run_.sequence_length * columns, std::nan(""));
  for (int rank = 0; rank < ranks(); ++rank) {
    for (int64_t row = 0; row < type.dims[0].size; ++row) {
      const int64_t to = whole_row(rank, row, has_cut_rows(type)) * columns;
      for (int64_t c = 0; c < columns; ++c) {
        const double value = data(rank, tensor)[row * columns + c];
        if (!std::isnan(whole[to + c]) && whole[to + c] != value) throw std::runtime_error("ranks disagree on a row");
        whole[to + c] = value;
      }
    }
  }
}

void Lockstep::collect_gradients(LayerResult& result) {
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const ParameterSlice& slice : slices_of(layer_.graph, unit_, 0, kLayer, run_.cut, tensor_rank(rank), {})) {
      const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
      std::vector<double>& whole = result.gradients[slice.tensor];
      if (whole.empty()) whole.assign(slice.shape[0] * columns, std::nan(""));
      for (int64_t r = slice.row_begin; r < slice.row_end; ++r) {
        for (int64_t c = slice.column_begin; c < slice.column_end; ++c) {
          const int64_t at = slice.element_offset + (r - slice.row_begin) * slice.row_stride + c - slice.column_begin;
          double& element = whole.at(r * columns + c);
          const bool again = slice.replicated || context_rank(rank) > 0;
          if (again == std::isnan(element)) throw std::runtime_error(slice.tensor + " is held twice or not first");
          if (again && element != gradients_[rank].at(at))
            throw std::runtime_error("ranks disagree on " + slice.tensor);
          element = gradients_[rank].at(at);
        }
      }
    }
  }
  for (const auto& [name, values] : result.gradients) {
    for (const double value : values) {
      if (std::isnan(value)) throw std::runtime_error("nobody holds all of " + name);
    }
  }
}

LayerResult Lockstep::result() {
  for (const Node& node : layer_.graph.nodes) {
    if (node.collective == NodeCollective::none) {
      run_op(node);
    } else {
      run_collective(node);
    }
  }
  reduce_gradients();
  LayerResult result;
  collect_rows(layer_.graph.find(TensorRole::layer_output), result.output);
  collect_rows(layer_.graph.find(TensorRole::input_gradient), result.input_gradient);
  if (const int loss = layer_.graph.find(TensorRole::loss); loss >= 0) {
    for (int rank = 0; rank < ranks(); ++rank) result.loss += data(rank, loss)[0];
  }
  collect_gradients(result);
  return result;
}

std::string compare(const std::string& name, const std::vector<double>& expected, const std::vector<double>& actual,
                    double tolerance) {
  if (expected.size() != actual.size())
    return fmt::format("{}: {} and {} elements\n", name, expected.size(), actual.size());
  double largest = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::isnan(actual[i]) ? INFINITY : std::max(error, std::abs(expected[i] - actual[i]));
  }
  if (error <= tolerance * largest) return "";
  return fmt::format("{}: differs by {:.3g}, largest element {:.3g}\n", name, error, largest);
}

}  // namespace

LayerResult run_layer(const LayerRun& run) { return Lockstep(run).result(); }

std::string difference(const LayerResult& expected, const LayerResult& actual, double tolerance) {
  std::string text = compare("output", expected.output, actual.output, tolerance) +
                     compare("input gradient", expected.input_gradient, actual.input_gradient, tolerance) +
                     compare("loss", {expected.loss}, {actual.loss}, tolerance);
  for (const auto& [name, gradient] : expected.gradients) {
    const auto found = actual.gradients.find(name);
    text += found == actual.gradients.end() ? name + " has no gradient\n"
                                            : compare("gradient of " + name, gradient, found->second, tolerance);
  }
  return text;
}

}  // namespace foresail::testing
