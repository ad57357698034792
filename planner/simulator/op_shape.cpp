#include "planner/simulator/op_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "ops/op_table.h"
#include "planner/simulator/expert_load.h"

namespace foresail {
namespace {

struct Parsed {
  OpKind kind{};
  std::string_view dtype, other_dtype;
  std::vector<std::vector<int64_t>> inputs, outputs;
  int64_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, sequence = 0, window = 0, context = 1, routed_rows = 0;
  bool dropout = false;
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool parse_int(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

bool parse_shapes(std::string_view text, std::vector<std::vector<int64_t>>& shapes) {
  if (text.empty()) return true;
  for (const std::string_view operand : split(text, ',')) {
    auto& shape = shapes.emplace_back();
    if (operand.empty()) continue;
    for (const std::string_view size : split(operand, 'x')) {
      if (!parse_int(size, shape.emplace_back())) return false;
    }
  }
  return true;
}

/// "a12g4d64s1024".
bool parse_heads(std::string_view text, Parsed& parsed) {
  const size_t g = text.find('g'), d = text.find('d'), s = text.find('s');
  if (g == std::string_view::npos || d == std::string_view::npos || s == std::string_view::npos || !(g < d && d < s)) {
    return false;
  }
  return parse_int(text.substr(1, g - 1), parsed.heads) && parse_int(text.substr(g + 1, d - g - 1), parsed.kv_heads) &&
         parse_int(text.substr(d + 1, s - d - 1), parsed.head_dim) && parse_int(text.substr(s + 1), parsed.sequence);
}

bool parse_attribute(std::string_view text, Parsed& parsed) {
  if (text.empty()) return false;
  switch (text.front()) {
    case 'a': return parse_heads(text, parsed);
    case 'c': return parse_int(text.substr(1), parsed.context);
    case 'f': parsed.other_dtype = text; return text.starts_with("from_");
    case 'r': return parse_int(text.substr(1), parsed.routed_rows);
    case 'v': return parse_int(text.substr(1), parsed.value_dim);
    case 'w': return parse_int(text.substr(1), parsed.window);
    case 'p': parsed.dropout = true; return text.size() == 1;
    default: return false;
  }
}

std::optional<OpKind> kind_of(std::string_view name) {
  for (int i = 0; i < kOpKindCount; ++i) {
    if (name_of(static_cast<OpKind>(i)) == name) return static_cast<OpKind>(i);
  }
  return std::nullopt;
}

std::optional<Parsed> parse(std::string_view text) {
  const auto parts = split(text, '/');
  if (parts.size() < 3) return std::nullopt;
  Parsed parsed;
  const auto kind = kind_of(parts[0]);
  const size_t arrow = parts[2].find("->");
  if (!kind || arrow == std::string_view::npos) return std::nullopt;
  parsed.kind = *kind;
  parsed.dtype = parts[1];
  if (!parse_shapes(parts[2].substr(0, arrow), parsed.inputs)) return std::nullopt;
  if (!parse_shapes(parts[2].substr(arrow + 2), parsed.outputs)) return std::nullopt;
  for (size_t i = 3; i < parts.size(); ++i) {
    if (!parse_attribute(parts[i], parsed)) return std::nullopt;
  }
  return parsed;
}

double elements_of(const std::vector<int64_t>& shape) {
  double count = 1;
  for (const int64_t size : shape) count *= static_cast<double>(size);
  return count;
}

double all_elements(const Parsed& parsed) {
  double count = 0;
  for (const auto& shape : parsed.inputs) count += elements_of(shape);
  for (const auto& shape : parsed.outputs) count += elements_of(shape);
  return count;
}

/// log2 of (m, n, k) and 2mnk.
bool place_product(const Parsed& parsed, OpShape& shape) {
  if (parsed.inputs.size() < 2 || parsed.inputs[0].size() != 2 || parsed.inputs[1].size() != 2) return false;
  const auto& a = parsed.inputs[0];
  const auto& b = parsed.inputs[1];
  double m = static_cast<double>(a[0]), k = static_cast<double>(a[1]), n = 0;
  switch (parsed.kind) {
    case OpKind::linear: n = static_cast<double>(b[0]); break;
    case OpKind::linear_backward_input: n = static_cast<double>(b[1]); break;
    default: std::swap(m, k), n = static_cast<double>(b[1]); break;
  }
  shape.work = 2 * m * n * k;
  shape.position = {std::log2(m), std::log2(n), std::log2(k)};
  shape.terms = {1, m * k, n * k, m * n, shape.work};
  return m > 0 && n > 0 && k > 0;
}

/// log2 of (rows of an expert, columns, inner columns, experts); FLOPs of the rows in use.
bool place_expert_product(const Parsed& parsed, OpShape& shape) {
  const bool of_weight = parsed.kind == OpKind::expert_linear_backward_weight;
  const auto& weights = of_weight ? parsed.outputs : parsed.inputs;
  const size_t at = of_weight ? 0 : 1;
  if (weights.size() <= at || weights[at].size() != 3 || parsed.inputs[0].size() != 2 || parsed.outputs.empty())
    return false;
  const std::vector<int64_t>& weight = weights[at];
  const double buffer = static_cast<double>(parsed.inputs[0][0]);
  const double rows = parsed.routed_rows > 0 ? static_cast<double>(parsed.routed_rows) : buffer;
  const double experts = static_cast<double>(weight[0]), outer = static_cast<double>(weight[1]),
               inner = static_cast<double>(weight[2]);
  if (rows <= 0 || elements_of(weight) <= 0) return false;
  shape.work = 2 * rows * outer * inner;
  shape.position = {std::log2(rows / experts), std::log2(outer), std::log2(inner), std::log2(experts)};
  shape.terms = {1, rows * inner, experts * outer * inner, elements_of(parsed.outputs[0]), shape.work};
  return true;
}

/// log2 of (sequence, mean width of keys and values, heads of all sequences); work is proportional to the causal FLOPs.
bool place_attention(const Parsed& parsed, OpShape& shape) {
  if (parsed.head_dim <= 0 || parsed.sequence <= 0 || parsed.heads <= 0) return false;
  const int64_t value_dim = parsed.value_dim > 0 ? parsed.value_dim : parsed.head_dim;
  // T / S sequences. The packed qkv rows [T, (A + G) D + G W] are an operand of every kind, of the steps of a ring q
  // [T, A D].
  const bool ring = parsed.kind == OpKind::ring_attention || parsed.kind == OpKind::ring_attention_backward;
  const int64_t columns = parsed.heads * parsed.head_dim + (ring ? 0 : parsed.kv_heads * (parsed.head_dim + value_dim));
  double rows = 0;
  for (const auto* operands : {&parsed.inputs, &parsed.outputs}) {
    for (const auto& operand : *operands) {
      if (operand.size() == 2 && operand[1] == columns) rows = static_cast<double>(operand[0]);
    }
  }
  const double s = static_cast<double>(parsed.sequence);
  const double keys = parsed.window > 0 ? std::min(s, 2.0 * static_cast<double>(parsed.window)) : s;
  const double heads = rows / s * static_cast<double>(parsed.heads);
  if (heads <= 0) return false;
  const double width = static_cast<double>(parsed.head_dim + value_dim) / 2;
  shape.work = heads * s * keys * width;
  shape.position = {std::log2(s), std::log2(width), std::log2(heads)};
  shape.terms = {1, heads * s * width, heads * s * keys, shape.work};
  return true;
}

bool is_attention_product(OpKind kind) {
  const OpClass op_class = info(kind).op_class;
  if (op_class == OpClass::attention) return true;
  return op_class == OpClass::unfused_attention && kind != OpKind::attention_softmax &&
         kind != OpKind::attention_softmax_backward;
}

}  // namespace

std::optional<OpShape> parse_signature(std::string_view text) {
  const auto parsed = parse(text);
  if (!parsed) return std::nullopt;
  OpShape shape;
  shape.kind = parsed->kind;
  shape.family = std::string(name_of(parsed->kind)) + "/" + std::string(parsed->dtype);
  if (parsed->window > 0) shape.family += "/w";
  if (parsed->dropout) shape.family += "/p";
  // Of a conversion the operand's type is a factor of the bytes; sums and optimizer run another kernel.
  if (parsed->kind != OpKind::cast && !parsed->other_dtype.empty())
    shape.family += fmt::format("/{}", parsed->other_dtype);
  if (info(parsed->kind).op_class == OpClass::matrix_product) {
    const auto place = is_expert_product(parsed->kind) ? place_expert_product : place_product;
    if (!place(*parsed, shape)) return std::nullopt;
  } else if (is_attention_product(parsed->kind)) {
    if (!place_attention(*parsed, shape)) return std::nullopt;
  } else {
    shape.work = all_elements(*parsed);
    if (shape.work <= 0) return std::nullopt;
    shape.position = {std::log2(shape.work)};
    shape.terms = {1, shape.work};
  }
  return shape;
}

}  // namespace foresail
