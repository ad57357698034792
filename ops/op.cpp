#include "ops/op.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <optional>

#include "core/error.h"
#include "ops/op_table.h"

namespace foresail {

int64_t TensorType::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string_view name_of(OpKind kind) { return info(kind).name; }

OpKind op_kind_from_name(std::string_view name) {
  static const auto kinds = [] {
    std::map<std::string_view, OpKind> by_name;
    for (int i = 0; i < kOpKindCount; ++i) by_name[info(static_cast<OpKind>(i)).name] = static_cast<OpKind>(i);
    return by_name;
  }();
  const auto found = kinds.find(name);
  if (found == kinds.end()) {
    throw_bad_input(fmt::format("operator '{}'", name), "no operator of this name exists",
                    "use a name of the op table (docs/ops.md)");
  }
  return found->second;
}

namespace {

/// The input type that the output's does not tell: of what is converted, or added to a sum, or of gradients that were not
/// accumulated as usual (as the moments are kept).
std::optional<DType> other_input_type(const OpInstance& op) {
  const auto unless = [](const TensorType& type, DType usual) {
    return type.dtype == usual ? std::nullopt : std::optional(type.dtype);
  };
  switch (op.kind) {
    case OpKind::cast: return op.inputs.at(0).dtype;
    case OpKind::add: return unless(op.inputs.at(1), op.inputs.at(0).dtype);
    case OpKind::squared_norm: return unless(op.inputs.at(0), DType::f32);
    case OpKind::adamw: return unless(op.inputs.at(0), op.outputs.at(1).dtype);
    default: return std::nullopt;
  }
}

}  // namespace

std::string signature(const OpInstance& op) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto& first = op.outputs.empty() ? op.inputs.front() : op.outputs.front();
  fmt::format_to(out, "{}/{}/", name_of(op.kind), name_of(first.dtype));
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    fmt::format_to(out, "{}{}", i == 0 ? "" : ",", fmt::join(op.inputs[i].shape, "x"));
  }
  text += "->";
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    fmt::format_to(out, "{}{}", i == 0 ? "" : ",", fmt::join(op.outputs[i].shape, "x"));
  }
  if (const auto other = other_input_type(op)) fmt::format_to(out, "/from_{}", name_of(*other));
  const auto& attributes = op.attributes;
  if (attributes.head_dim > 0) {
    fmt::format_to(out, "/a{}g{}d{}s{}", attributes.heads, attributes.kv_heads, attributes.head_dim,
                   attributes.sequence_length);
  }
  if (attributes.value_dim > 0) fmt::format_to(out, "/v{}", attributes.value_dim);
  if (attributes.context_parallel > 1) fmt::format_to(out, "/c{}", attributes.context_parallel);
  if (attributes.window > 0) fmt::format_to(out, "/w{}", attributes.window);
  if (attributes.probability > 0) text += "/p";
  if (attributes.routed_rows > 0) fmt::format_to(out, "/r{}", attributes.routed_rows);
  return text;
}

}  // namespace foresail
