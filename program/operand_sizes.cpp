#include "program/operand_sizes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace foresail {
namespace {

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find(separator)) != std::string_view::npos; text.remove_prefix(at + separator.size())) {
    parts.push_back(text.substr(0, at));
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> parts = split(text, " ");
  std::erase_if(parts, [](std::string_view part) { return part.empty(); });
  return parts;
}

/// The operands on one side of the arrow.
std::vector<std::string_view> operands(std::string_view side) {
  if (words(side).empty()) return {};
  return split(side, ",");
}

/// Sizes by letter while one alternative is compared.
class Matcher {
 public:
  explicit Matcher(int64_t tensor_parallel) { size_of('P') = tensor_parallel; }

  bool matches(std::string_view side, const std::vector<TensorType>& types) {
    const std::vector<std::string_view> expected = operands(side);
    if (expected.size() != types.size()) return false;
    for (size_t i = 0; i < types.size(); ++i) {
      if (!matches_shape(words(expected[i]), types[i].shape)) return false;
    }
    return true;
  }

 private:
  bool matches_shape(const std::vector<std::string_view>& dims, const std::vector<int64_t>& shape) {
    if (dims.size() == 1 && dims[0] == "*") {
      if (!any_known_) any_ = shape;
      any_known_ = true;
      return any_ == shape;
    }
    if (dims.size() != shape.size()) return false;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!matches_size(dims[d], shape[d])) return false;
    }
    return true;
  }

  bool matches_size(std::string_view dim, int64_t size) {
    int64_t factor = 1;
    if (std::isdigit(static_cast<unsigned char>(dim[0])) != 0) {
      factor = dim[0] - '0';
      dim.remove_prefix(1);
      if (dim.empty()) return size == factor;
    }
    int64_t& known = size_of(dim[0]);
    if (known < 0) known = size / factor;
    return size == factor * known;
  }

  int64_t& size_of(char letter) { return sizes_[static_cast<unsigned char>(letter) & 127]; }

  std::array<int64_t, 128> sizes_ = [] {
    std::array<int64_t, 128> unknown;
    unknown.fill(-1);
    return unknown;
  }();
  std::vector<int64_t> any_;
  bool any_known_ = false;
};

}  // namespace

std::string_view operand_pattern(OpKind kind) {
  switch (kind) {
    case OpKind::embedding: return "T, V H -> T H";
    case OpKind::embedding_backward: return "T H, T -> V H";
    case OpKind::position_embedding: return "T H, M H -> T H";
    case OpKind::position_embedding_backward: return "T H -> M H";
    case OpKind::rms_norm: return "T H, H -> T H, T";
    case OpKind::rms_norm_backward: return "T H, T H, H, T -> T H, H | T H, T H, H, T, T H -> T H, H";
    case OpKind::layer_norm: return "T H, H, H -> T H, T, T";
    case OpKind::layer_norm_backward: return "T H, T H, H, T, T -> T H, H, H | T H, T H, H, T, T, T H -> T H, H, H";
    case OpKind::add_rms_norm: return "T H, T H, H -> T H, T H, T";
    case OpKind::add_layer_norm: return "T H, T H, H, H -> T H, T H, T, T";
    case OpKind::qk_norm: return "T Q, D, D -> T Q, T R";
    case OpKind::qk_norm_backward: return "T Q, T Q, D, D, T R -> T Q, D, D";
    case OpKind::linear: return "T K, N K -> T N | T K, N K, N -> T N";
    case OpKind::linear_backward_input: return "T N, N K -> T K";
    case OpKind::linear_backward_weight: return "T N, T K -> N K";
    case OpKind::bias_add: return "T N, N -> T N";
    case OpKind::bias_backward: return "T N -> N";
    case OpKind::rope_table: return "-> S E 2";
    case OpKind::rope:
    case OpKind::rope_backward: return "T Q, S E 2 -> T Q";
    case OpKind::attention: return "T Q -> T O, B A S";
    case OpKind::attention_backward: return "T O, T Q, T O, B A S -> T Q";
    case OpKind::attention_scores: return "T Q -> B A S S";
    case OpKind::attention_softmax:
    case OpKind::gelu:
    case OpKind::copy:
    case OpKind::cast:
    case OpKind::dropout: return "* -> *";
    case OpKind::attention_context: return "B A S S, T Q -> T O";
    case OpKind::attention_scores_backward: return "B A S S, T Q -> T Q";
    case OpKind::attention_softmax_backward:
    case OpKind::gelu_backward:
    case OpKind::add: return "*, * -> *";
    case OpKind::attention_context_backward: return "T O, B A S S, T Q -> B A S S, T Q";
    case OpKind::split_qkv: return "T Q -> T O, T K";
    case OpKind::join_qkv: return "T O, T K -> T Q";
    case OpKind::latent_join: return "T O, T K, T R, S E 2 -> T Q";
    case OpKind::latent_join_backward: return "T Q, S E 2 -> T O, T K, T R";
    case OpKind::ring_attention: return "T Q, T K -> T O, B A S | T Q, T K, T O, B A S -> T O, B A S";
    case OpKind::ring_attention_backward:
      return "T O, T Q, T K, T O, B A S -> T Q, T K | T O, T Q, T K, T O, B A S, T Q, T K -> T Q, T K";
    case OpKind::heads_split:
    case OpKind::rows_split: return "T W -> C U X";
    case OpKind::heads_merge:
    case OpKind::rows_merge: return "C U X -> T W";
    case OpKind::moe_route: return "T E -> T K, T K | T E, E -> T K, T K";
    case OpKind::moe_route_backward: return "T K, T E, T K -> T E";
    case OpKind::moe_statistics: return "T E, T K, T -> B 3 E";
    case OpKind::moe_balance_loss: return "T E, T, B 3 E -> 1";
    case OpKind::moe_balance_backward: return "T E, T, B 3 E -> T E";
    case OpKind::moe_dispatch: return "T H, T K -> R H, T K, E, 1";
    case OpKind::moe_dispatch_backward: return "R H, T K -> T H";
    case OpKind::expert_linear: return "R J, L O J, M -> R O";  // M: sources x experts
    case OpKind::expert_linear_backward_input: return "R O, L O J, M -> R J";
    case OpKind::expert_linear_backward_weight: return "R O, R J, M -> L O J";
    case OpKind::moe_combine: return "R H, T K, T K -> T H";
    case OpKind::moe_combine_backward: return "T H, R H, T K, T K -> R H, T K";
    case OpKind::bias_gelu: return "T F, F -> T F";
    case OpKind::bias_gelu_backward: return "T F, T F, F -> T F";
    case OpKind::swiglu: return "T 2F -> T F";
    case OpKind::swiglu_backward: return "T F, T 2F -> T 2F";
    case OpKind::cross_entropy_stats: return "T V, T -> T 3";
    case OpKind::cross_entropy_backward: return "T V, T, P T 3 -> T V, 1 | T V, T, T 3 -> T V, 1";
    case OpKind::cross_entropy_loss: return "T V, T, P T 3 -> 1 | T V, T, T 3 -> 1";  // P = 1: not gathered
    case OpKind::cross_entropy: return "T V, T -> T V, 1";
    case OpKind::fill_zero: return "-> *";
    case OpKind::squared_norm: return "N -> 1";
    case OpKind::clip_scale: return "6 -> 6";
    case OpKind::adamw: return "N, 6 -> N, N, N | N, 6 -> N, N, N, N";
    case OpKind::count_: break;
  }
  return "";
}

bool operands_agree(const OpInstance& op, int64_t tensor_parallel) {
  const std::vector<std::string_view> alternatives = split(operand_pattern(op.kind), "|");
  return std::any_of(alternatives.begin(), alternatives.end(), [&](std::string_view alternative) {
    const std::vector<std::string_view> sides = split(alternative, "->");
    Matcher matcher(tensor_parallel);
    return sides.size() == 2 && matcher.matches(sides[0], op.inputs) && matcher.matches(sides[1], op.outputs);
  });
}

}  // namespace foresail
