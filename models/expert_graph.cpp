// The mixture of experts that takes the place of a block's FFN (Shazeer et al. 2017; shared experts: DeepSeek-V2, section
// 2.1.2). Here every expert is on the rank; program/ cuts them and moves the rows.
#include "models/layer_builder.h"

namespace foresail {
namespace {

OpAttributes router_attributes(const LayerBuilder& layer) {
  const ExpertSpec& moe = layer.model.moe;
  OpAttributes attributes = layer.row_attributes();
  attributes.sequences = layer.options.micro_batch;
  attributes.experts = moe.experts;
  attributes.experts_per_token = moe.experts_per_token;
  attributes.expert_groups = moe.groups;
  attributes.groups_per_token = moe.groups_per_token;
  attributes.scoring = moe.scoring;
  attributes.group_score = moe.group_score;
  attributes.normalise_gates = moe.normalise_gates;
  attributes.gate_scale = moe.gate_scale;
  attributes.balance_coefficient = moe.balance_coefficient;
  attributes.z_coefficient = moe.z_coefficient;
  return attributes;
}

/// A matrix per expert. `modules` stand one below the other in each of them, `rows` rows each.
int expert_weight(LayerBuilder& layer, const std::string& name, const std::vector<std::string>& modules, int64_t rows,
                  const Dim& outputs, const Dim& inputs, const Init& init) {
  const int64_t experts = layer.model.moe.experts;
  std::vector<WeightPart> parts;
  for (int64_t e = 0; e < experts; ++e) {
    for (const std::string& module : modules) {
      parts.push_back({expert_name(module, e) + ".weight", rows, rows, 0, layer.names.transposed_in_file});
    }
  }
  return layer.graph.weight({name, {{DimName::experts, experts}, outputs, inputs}, parts, init, true, ""});
}

/// The losses that keep all experts in use. The rows of a sequence may lie on several ranks, whose statistics are summed
/// before the loss reads them.
void balance(LayerBuilder& layer, const OpAttributes& attributes, int logits, int index) {
  if (attributes.balance_coefficient <= 0 && attributes.z_coefficient <= 0) return;
  const int targets = layer.graph.input("targets", TensorRole::targets, DType::i32, {layer.tokens()});
  const int stats =
      layer.graph.add(OpKind::moe_statistics, attributes, {logits, index, targets}, {"router.statistics"})[0];
  const int loss = layer.graph.add(OpKind::moe_balance_loss, attributes, {logits, targets, stats}, {"router.loss"})[0];
  layer.graph.set_role(loss, TensorRole::auxiliary_loss);
}

/// Which experts each row goes to and with what weight: [index, gate].
std::vector<int> route(LayerBuilder& layer, int normed) {
  const ExpertSpec& moe = layer.model.moe;
  const ExpertNames& names = layer.names.experts;
  const OpAttributes attributes = router_attributes(layer);
  const Dim experts = fixed(moe.experts);  // every rank scores all of them
  const int w = layer.matrix("router", names.router, {experts, layer.hidden()}, layer.normal());
  const int logits = layer.linear("router.logits", normed, w);
  std::vector<int> inputs{logits};
  if (moe.correction_bias) {
    inputs.push_back(layer.vector("correction_bias", names.correction_bias, experts, InitKind::zeros));
  }
  const auto routed = layer.graph.add(OpKind::moe_route, attributes, inputs, {"router.index", "router.gate"});
  balance(layer, attributes, logits, routed[0]);
  return routed;
}

int shared_experts(LayerBuilder& layer, int normed, int residual) {
  const ExpertNames& names = layer.names.experts;
  const int64_t width = layer.model.moe.shared_ffn;
  const int y =
      layer.gated("shared_gate_up", "shared.activated", names.shared_gate, names.shared_up, normed, width, false);
  return layer.project("shared_down", names.shared_down, y, {DimName::ffn, width}, false, residual, kMlpOutSite);
}

}  // namespace

int expert_ffn(LayerBuilder& layer, int normed, int residual) {
  const ExpertSpec& moe = layer.model.moe;
  const ExpertNames& names = layer.names.experts;
  GraphBuilder& graph = layer.graph;
  const Dim gate_up{DimName::expert_gate_up, 2 * moe.expert_ffn}, ffn{DimName::expert_ffn, moe.expert_ffn};
  const std::vector<int> routed = route(layer, normed);

  OpAttributes attributes;
  attributes.experts = moe.experts;
  attributes.experts_per_token = moe.experts_per_token;
  attributes.expert_rows = attributes.routed_rows = layer.tokens().size * moe.experts_per_token;
  const auto sent = graph.add(OpKind::moe_dispatch, attributes, {normed, routed[0]},
                              {"experts.in", "experts.slot", "experts.counts", "experts.overflow"});
  graph.set_role(sent[3], TensorRole::overflow);
  const int gates = expert_weight(layer, "expert_gate_up", {names.gate, names.up}, moe.expert_ffn, gate_up,
                                  layer.hidden(), layer.normal());
  int y = graph.add(OpKind::expert_linear, attributes, {sent[0], gates, sent[2]}, {"experts.gate_up"})[0];
  y = graph.add(OpKind::swiglu, {}, {y}, {"experts.activated"})[0];
  const int down =
      expert_weight(layer, "expert_down", {names.down}, layer.model.hidden, layer.hidden(), ffn, layer.normal(true));
  y = graph.add(OpKind::expert_linear, attributes, {y, down, sent[2]}, {"experts.out"})[0];
  y = graph.add(OpKind::moe_combine, attributes, {y, sent[1], routed[1]}, {"experts.combined"})[0];
  if (moe.shared_ffn > 0) residual = shared_experts(layer, normed, residual);
  return layer.add("experts.sum", y, residual);
}

}  // namespace foresail
