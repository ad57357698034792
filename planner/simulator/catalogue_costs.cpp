// Costs from datasheet figures and the few constants of a software stack.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "core/round_up.h"
#include "ops/op_table.h"
#include "planner/simulator/cost_model.h"
#include "planner/simulator/expert_load.h"
#include "planner/simulator/gemm_model.h"

namespace foresail {
namespace {

/// What kernels of a device generation reach, fitted on published runs (docs/planning.md).
struct Generation {
  std::string_view device;  // name of the device begins with this
  double ramp_k;            // see GemmDevice
  double flash_rate;        // fraction of peak of forward flash attention, causal FLOPs counted
};
constexpr std::array<Generation, 2> kGenerations = {{{"A100", 150, 0.34}, {"H100", 300, 0.19}}};
constexpr double kFlashBackwardRate = 0.9;  // backward relative to forward, per FLOP
constexpr double kBatchedScoreRate = 0.6;   // batched products of unfused attention relative to large products
constexpr int64_t kGroupAlignment = 8;      // rows of an expert in a group of products
constexpr double kAccumulateTraffic = 3;    // unfused "grad += new": read both, write one

// A ring of g ranks inside a node reaches the stack's fraction of the links less this share over g: NCCL tables of A100
// nodes, 193 GB/s with 2 ranks and 228 GB/s with 8.
constexpr double kSmallGroupLoss = 0.34;

// Half-widths of 80 % intervals by what such models were seen to miss on published runs (docs/planning.md).
constexpr double kOpSpread = 0.15;
constexpr double kCollectiveSpread = 0.30;
constexpr double kCalibratedCommonSpread = 0.10;
constexpr double kUncalibratedCommonSpread = 0.30;

class CatalogueCosts final : public CostModel {
 public:
  CatalogueCosts(const Machine& machine, const Stack& stack);
  Cost op_seconds(const OpInstance& op) const override;
  Cost collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const override;
  Cost message_seconds(int64_t bytes, bool crosses_nodes) const override;
  double issue_seconds() const override { return stack_.launch_seconds; }
  bool calibrated() const override { return calibrated_; }
  double common_spread() const override { return calibrated_ ? kCalibratedCommonSpread : kUncalibratedCommonSpread; }

 private:
  double peak(DType type) const;
  double product_seconds(const OpInstance& op) const;
  double expert_product_seconds(const OpInstance& op) const;
  double score_product_seconds(const OpInstance& op) const;
  Cost exchange(InstructionKind kind, int64_t bytes, const GroupSpan& span) const;
  double node_link(const GroupSpan& span) const;
  double nics() const;
  GemmDevice gemm_device(DType type, double rate) const;

  Machine machine_;
  Stack stack_;
  Generation generation_ = kGenerations[0];
  double memory_bytes_per_second_ = 0;
  bool calibrated_ = false;
};

double positive(const Machine& machine, const char* field, const Sourced& figure) {
  if (figure.value > 0) return figure.value;
  throw_bad_input(fmt::format("machine '{}': field '{}'", machine.name, field), "a catalogue machine needs this figure",
                  "add it with its source to the machine file");
}

/// Whether every constant of the stack says that it was fitted, the matrix efficiency on this device generation.
bool fitted_for(const Stack& stack, const std::string& device) {
  const std::string generation = device.substr(0, device.find('-'));
  const auto efficiency = stack.constant_sources.find("matrix_efficiency");
  if (efficiency == stack.constant_sources.end() || efficiency->second.find(generation) == std::string::npos)
    return false;
  return std::none_of(stack.constant_sources.begin(), stack.constant_sources.end(),
                      [](const auto& constant) { return constant.second.find("not fitted") != std::string::npos; });
}

CatalogueCosts::CatalogueCosts(const Machine& machine, const Stack& stack) : machine_(machine), stack_(stack) {
  machine_.tables.clear();
  memory_bytes_per_second_ =
      positive(machine, "device.memory_bytes_per_second", machine.device.memory_bytes_per_second) *
      stack.memory_efficiency;
  positive(machine, "device.multiprocessors", machine.device.multiprocessors);
  positive(machine, "intra_node.bytes_per_second", machine.intra_node.bytes_per_second);
  for (const Generation& generation : kGenerations) {
    if (machine.device.name.starts_with(generation.device)) generation_ = generation;
  }
  calibrated_ = fitted_for(stack, machine.device.name);
}

double CatalogueCosts::peak(DType type) const {
  const auto found = machine_.device.peak_flops_per_second.find(std::string(name_of(type)));
  if (found == machine_.device.peak_flops_per_second.end() || found->second.value <= 0) {
    throw_bad_input(fmt::format("machine '{}': field 'device.peak_flops_per_second.{}'", machine_.name, name_of(type)),
                    "the figure for this element type is missing",
                    "add it with its source, or plan with another precision");
  }
  return found->second.value;
}

GemmDevice CatalogueCosts::gemm_device(DType type, double rate) const {
  return {peak(type), stack_.matrix_efficiency * rate, memory_bytes_per_second_,
          static_cast<int64_t>(machine_.device.multiprocessors.value), generation_.ramp_k};
}

double CatalogueCosts::product_seconds(const OpInstance& op) const {
  const auto& a = op.inputs[0].shape;
  const auto& b = op.inputs[1].shape;
  GemmWork shape;
  shape.bytes = bytes_of(op);
  double accumulate_seconds = 0;
  switch (op.kind) {
    case OpKind::linear: shape.m = a[0], shape.k = a[1], shape.n = b[0]; break;
    case OpKind::linear_backward_input: shape.m = a[0], shape.k = a[1], shape.n = b[1]; break;
    default: {
      shape.m = a[1], shape.k = a[0], shape.n = b[1];
      const double gradient_bytes = static_cast<double>(op.outputs[0].bytes());
      shape.bytes -= gradient_bytes;  // the op table counts the accumulator twice; the read-add-write follows apart
      accumulate_seconds = kAccumulateTraffic * gradient_bytes / memory_bytes_per_second_;
    }
  }
  return gemm_seconds(shape, gemm_device(op.inputs[0].dtype, 1)) + accumulate_seconds;
}

/// One batched product over the experts, each with its share of the rows in use.
double CatalogueCosts::expert_product_seconds(const OpInstance& op) const {
  const bool of_weight = op.kind == OpKind::expert_linear_backward_weight;
  const auto& weight = (of_weight ? op.outputs[0] : op.inputs[1]).shape;
  const int64_t rows = std::max<int64_t>(1, op.attributes.routed_rows);
  // Kernels for groups of products pad each to whole rows of tiles.
  const int64_t experts = std::min(weight[0], rows), share = round_up(divide_up(rows, experts), kGroupAlignment);
  GemmWork shape{share, weight[1], weight[2], experts, bytes_of(op)};
  double accumulate_seconds = 0;
  if (op.kind == OpKind::expert_linear_backward_input) std::swap(shape.n, shape.k);
  if (of_weight) {
    shape.m = weight[1], shape.n = weight[2], shape.k = share;
    const double gradient_bytes = static_cast<double>(op.outputs[0].bytes());
    shape.bytes -= gradient_bytes;
    accumulate_seconds = kAccumulateTraffic * gradient_bytes / memory_bytes_per_second_;
  }
  return gemm_seconds(shape, gemm_device(op.inputs[0].dtype, 1)) + accumulate_seconds;
}

double CatalogueCosts::score_product_seconds(const OpInstance& op) const {
  const OpAttributes& attributes = op.attributes;
  const int64_t s = attributes.sequence_length;
  // FLOPs over one product of every sequence and head gives how many products this op is.
  const bool values = op.kind == OpKind::attention_context || op.kind == OpKind::attention_context_backward;
  const int64_t width = values ? attributes.value_width() : attributes.head_dim;
  const double one = 2.0 * static_cast<double>(s) * static_cast<double>(s) * static_cast<double>(width);
  GemmWork shape{s, s, width, std::max<int64_t>(1, std::llround(flops_of(op) / one)), 0};
  const bool contracts_keys = op.kind == OpKind::attention_context;
  if (contracts_keys) std::swap(shape.n, shape.k);
  return std::max(gemm_seconds(shape, gemm_device(op.inputs[0].dtype, kBatchedScoreRate)),
                  bytes_of(op) / memory_bytes_per_second_);
}

Cost CatalogueCosts::op_seconds(const OpInstance& instance) const {
  const OpInstance op = on_busiest_rank(instance);
  const double memory_seconds = bytes_of(op) / memory_bytes_per_second_;
  double seconds = memory_seconds;
  switch (info(op.kind).op_class) {
    case OpClass::matrix_product:
      seconds = is_expert_product(op.kind) ? expert_product_seconds(op) : product_seconds(op);
      break;
    case OpClass::attention: {
      const double rate = generation_.flash_rate * (op.kind == OpKind::attention ? 1 : kFlashBackwardRate);
      seconds = std::max(memory_seconds, flops_of(op) / (peak(op.inputs[0].dtype) * rate));
      break;
    }
    case OpClass::unfused_attention:
      if (op.kind != OpKind::attention_softmax && op.kind != OpKind::attention_softmax_backward) {
        seconds = score_product_seconds(op);
      }
      break;
    default: break;  // bound by memory
  }
  return {seconds + stack_.launch_seconds, kOpSpread};
}

/// Ring: an all-reduce passes every byte 2 (g-1)/g times through each link, an all-gather or a reduce-scatter (g-1)/g
/// times (Thakur, Rabenseifner & Gropp 2005, sections 4.1 and 4.4). Across nodes an all-reduce may take NCCL's double
/// tree instead, whose latency grows with log2 of the nodes.
Cost CatalogueCosts::collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const {
  if (span.size <= 1) return {};
  if (kind == InstructionKind::all_to_all || kind == InstructionKind::ring_shift) return exchange(kind, bytes, span);
  const double g = static_cast<double>(span.size);
  const double passes = kind == InstructionKind::all_reduce ? 2 : 1;
  const double volume = passes * (g - 1) / g * static_cast<double>(bytes);
  const double inside = passes * static_cast<double>(span.per_node - 1) * machine_.intra_node.latency_seconds.value;
  const double fixed = stack_.collective_seconds + stack_.launch_seconds;
  if (span.per_node >= span.size) return {fixed + inside + volume / node_link(span), kCollectiveSpread};

  const double link = std::min(node_link(span), nics() / static_cast<double>(span.sibling_groups_per_node));
  const double nodes = std::ceil(g / static_cast<double>(span.per_node));
  const double hop = machine_.inter_node.latency_seconds.value;
  double seconds = inside + passes * (nodes - 1) * hop + volume / link;
  if (kind == InstructionKind::all_reduce) {
    seconds = std::min(seconds, inside + 4 * std::log2(nodes) * hop + 2 * static_cast<double>(bytes) / link);
  }
  return {fixed + seconds, kCollectiveSpread};
}

/// Direct exchanges: an all-to-all sends (g-1)/g of the bytes over the narrowest link that a rank has for itself, its
/// share of the NICs once the group leaves the node; of a ring shift only one message per group and node leaves it.
Cost CatalogueCosts::exchange(InstructionKind kind, int64_t bytes, const GroupSpan& span) const {
  const bool to_all = kind == InstructionKind::all_to_all;
  const double g = static_cast<double>(span.size);
  const double volume = static_cast<double>(bytes) * (to_all ? (g - 1) / g : 1);
  const bool inside = span.per_node >= span.size;
  double link = node_link(span);
  if (!inside) {
    const int64_t senders = span.sibling_groups_per_node * (to_all ? span.per_node : 1);
    link = std::min(link, nics() / static_cast<double>(std::min(senders, machine_.devices_per_node)));
  }
  const double hop = (inside ? machine_.intra_node : machine_.inter_node).latency_seconds.value;
  const double fixed = stack_.launch_seconds + (to_all ? stack_.collective_seconds : 0);
  return {fixed + hop + volume / link, kCollectiveSpread};
}

/// Of one rank to the others of its group in the node.
double CatalogueCosts::node_link(const GroupSpan& span) const {
  const double in_node = static_cast<double>(std::max<int64_t>(span.per_node, 2));
  return machine_.intra_node.bytes_per_second.value * stack_.intra_node_efficiency * (1 - kSmallGroupLoss / in_node);
}

/// All NICs of a node: the groups that lie side by side in it share them.
double CatalogueCosts::nics() const {
  return positive(machine_, "inter_node.bytes_per_second", machine_.inter_node.bytes_per_second) *
         static_cast<double>(machine_.devices_per_node) * stack_.inter_node_efficiency;
}

Cost CatalogueCosts::message_seconds(int64_t bytes, bool crosses_nodes) const {
  const LinkSpec& link = crosses_nodes ? machine_.inter_node : machine_.intra_node;
  const double fraction = crosses_nodes ? stack_.inter_node_efficiency : stack_.intra_node_efficiency;
  const char* field = crosses_nodes ? "inter_node.bytes_per_second" : "intra_node.bytes_per_second";
  const double rate = positive(machine_, field, link.bytes_per_second) * fraction;
  return {link.latency_seconds.value + stack_.launch_seconds + static_cast<double>(bytes) / rate, kCollectiveSpread};
}

}  // namespace

std::unique_ptr<CostModel> make_catalogue_cost_model(const Machine& machine, const Stack& stack) {
  return std::make_unique<CatalogueCosts>(machine, stack);
}

}  // namespace foresail
