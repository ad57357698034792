#include "models/layer_builder.h"

#include <cmath>

namespace foresail {

Init LayerBuilder::normal(bool residual_projection) const {
  // GPT-2 scales what is added to the residual stream by 1 / sqrt(number of additions) (Radford et al. 2019, 2.3).
  const double additions = model.scale_residual_init && residual_projection ? 2.0 * model.layers : 1.0;
  return {InitKind::normal, model.init_standard_deviation / std::sqrt(additions)};
}

int LayerBuilder::weight(const std::string& name, const std::string& tensor, std::vector<Dim> dims, const Init& init,
                         bool decay, bool transposed) {
  const int64_t rows = dims.at(0).size;
  return graph.weight({name, std::move(dims), {{tensor, rows, rows, 0, transposed}}, init, decay, ""});
}

int LayerBuilder::norm(const std::string& weight_name, const std::string& output, const std::string& module, int x) {
  OpAttributes attributes;
  attributes.epsilon = model.norm_epsilon;
  const int scale = vector(weight_name, module + ".weight", hidden(), InitKind::ones);
  if (model.norm == NormKind::rms_norm) {
    return graph.add(OpKind::rms_norm, attributes, {x, scale}, {output, output + ".rstd"})[0];
  }
  const int shift = bias(weight_name + "_bias", module, hidden());
  return graph.add(OpKind::layer_norm, attributes, {x, scale, shift}, {output, output + ".mean", output + ".rstd"})[0];
}

int LayerBuilder::dropout(const std::string& output, int x, double probability, RandomSite site) {
  if (probability <= 0) return x;
  OpAttributes attributes = row_attributes();
  attributes.probability = probability;
  attributes.random_site = site;
  return graph.add(OpKind::dropout, attributes, {x}, {output})[0];
}

int LayerBuilder::linear(const std::string& output, int x, int matrix, int bias) {
  std::vector<int> inputs{x, matrix};
  if (bias >= 0) inputs.push_back(bias);
  return graph.add(OpKind::linear, {}, inputs, {output})[0];
}

int LayerBuilder::project(const std::string& name, const std::string& module, int x, const Dim& inner, bool has_bias,
                          int residual, RandomSite site) {
  int y = linear(name, x, matrix(name, module, {hidden(), inner}, normal(true)));
  if (has_bias) {
    y = graph.add(OpKind::bias_add, {}, {y, bias(name + "_bias", module, hidden())}, {name + ".biased"})[0];
  }
  y = dropout(name + ".dropped", y, model.residual_dropout, site);
  return add(name + ".sum", y, residual);
}

int LayerBuilder::gated(const std::string& name, const std::string& output, const std::string& gate,
                        const std::string& up, int x, int64_t width, bool has_bias) {
  const Dim gate_up{DimName::gate_up, 2 * width};
  const auto parts = [&](const std::string& suffix, bool transposed) {
    return std::vector<WeightPart>{{gate + suffix, width, width, 0, transposed},
                                   {up + suffix, width, width, 0, transposed}};
  };
  const auto matrices = parts(".weight", names.transposed_in_file);
  const int w = graph.weight({name, {gate_up, hidden()}, matrices, normal(), true, ""});
  int b = -1;
  if (has_bias) {
    b = graph.weight({name + "_bias", {gate_up}, parts(".bias", false), {InitKind::zeros, 0}, false, ""});
  }
  return graph.add(OpKind::swiglu, {}, {linear(name, x, w, b)}, {output})[0];
}

OpAttributes LayerBuilder::row_attributes() const {
  OpAttributes attributes;
  attributes.sequence_length = local_length();
  attributes.context_parallel = options.context_parallel;
  return attributes;
}

OpAttributes LayerBuilder::head_attributes() const {
  OpAttributes attributes = row_attributes();
  attributes.heads = model.heads;
  attributes.kv_heads = model.kv_heads;
  attributes.head_dim = model.head_dim;
  return attributes;
}

}  // namespace foresail
