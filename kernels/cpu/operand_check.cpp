#include "kernels/cpu/operand_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/row_map.h"

namespace foresail {
namespace {

struct OperandRule {
  std::string name, dtype = "f32", text;
  bool optional = false;
  std::vector<std::string> dims;
};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    if (end != 0) parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

OperandRule parse_rule(const std::string& text) {
  OperandRule rule;
  const size_t bracket = text.find('[');
  std::string head = text.substr(0, bracket);
  rule.dims = split(std::string_view(text).substr(bracket + 1, text.size() - bracket - 2), ',');
  rule.text = text.substr(bracket);
  if (head.back() == '?') {
    rule.optional = true;
    head.pop_back();
  }
  const size_t colon = head.find(':');
  rule.name = head.substr(0, colon);
  if (colon != std::string::npos) rule.dtype = head.substr(colon + 1);
  return rule;
}

std::vector<OperandRule> parse_side(std::string_view text) {
  std::vector<OperandRule> rules;
  for (const auto& part : split(text, ' ')) rules.push_back(parse_rule(part));
  return rules;
}

using Symbols = std::map<std::string, int64_t>;

Symbols symbols_of(const OpAttributes& a) {
  Symbols symbols;
  if (a.sequence_length > 0) symbols["S"] = a.sequence_length;
  symbols["C"] = a.context_parallel;
  symbols["SC"] = whole_length(a);
  if (a.head_dim > 0) {
    symbols["A"] = a.heads;
    symbols["G"] = a.kv_heads;
    symbols["D"] = a.head_dim;
    symbols["QKV"] = a.qkv_columns();
    symbols["AD"] = a.q_columns();
    symbols["KV"] = a.kv_columns();
    symbols["AW"] = a.o_columns();
    symbols["AG"] = a.heads + a.kv_heads;
    symbols["RO"] = a.rotated_width();
    symbols["RO/2"] = a.rotated_width() / 2;
    symbols["LKV"] = a.heads * (a.head_dim - a.rope_dim + a.value_width());
  }
  return symbols;
}

/// Equal to the symbol's value, or the first use of the symbol.
bool matches(const std::string& dim, int64_t size, Symbols& symbols) {
  if (dim.find_first_not_of("0123456789") == std::string::npos) return std::stoll(dim) == size;
  if (dim.size() > 1 && dim[0] == '2') return size % 2 == 0 && matches(dim.substr(1), size / 2, symbols);
  return symbols.emplace(dim, size).first->second == size;
}

bool shape_matches(const OperandRule& rule, const TensorType& type, Symbols& symbols) {
  if (rule.dims.size() == 1 && rule.dims[0].back() == '*')
    return matches(rule.dims[0].substr(0, 1), type.elements(), symbols);
  if (rule.dims.size() != type.shape.size()) return false;
  for (size_t i = 0; i < rule.dims.size(); ++i) {
    if (!matches(rule.dims[i], type.shape[i], symbols)) return false;
  }
  return true;
}

bool dtype_matches(const OperandRule& rule, DType dtype) {
  if (rule.dtype == "real") return dtype == DType::f32 || dtype == DType::f64;
  return rule.dtype == "any" || rule.dtype == name_of(dtype);
}

void check_side(const OpInstance& op, const std::vector<OperandRule>& rules, const std::vector<TensorType>& types,
                std::string_view side, Symbols& symbols) {
  size_t required = rules.size();
  while (required > 0 && rules[required - 1].optional) --required;
  if (types.size() < required || types.size() > rules.size()) {
    refuse_operator(op, fmt::format("{} {}s given, the cpu kernel takes {}", types.size(), side,
                                    required == rules.size() ? fmt::format("{}", required)
                                                             : fmt::format("{} to {}", required, rules.size())));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const auto& rule = rules[i];
    if (!dtype_matches(rule, types[i].dtype)) {
      throw_bad_input(
          "cpu device",
          fmt::format("cpu has no kernel for {} in {} ({} {} must be {})", name_of(op.kind), name_of(types[i].dtype),
                      side, rule.name, rule.dtype == "real" ? "f32 or f64" : rule.dtype),
          "use a device that has one, or train in f32");
    }
    if (!shape_matches(rule, types[i], symbols)) {
      refuse_operator(op, fmt::format("{} {} has shape [{}], the cpu kernel needs {}", side, rule.name,
                                      fmt::join(types[i].shape, ","), rule.text));
    }
  }
}

void check_relations(const OpInstance& op, const Symbols& symbols, std::string_view pattern) {
  const auto value = [&](const char* name) {
    const auto found = symbols.find(name);
    return found == symbols.end() ? int64_t{-1} : found->second;
  };
  const int64_t rows = value("T"), batch = value("B"), sequence = value("S"), heads = value("A"), kv_heads = value("G");
  const bool uses_sequence = pattern.find('S') != std::string_view::npos;
  const bool uses_heads = pattern.find('A') != std::string_view::npos || pattern.find("QKV") != std::string_view::npos;
  if (uses_sequence && sequence < 1) refuse_operator(op, "attribute sequence_length must be positive");
  if (batch >= 0 && rows >= 0 && batch * sequence != rows) {
    refuse_operator(op, fmt::format("{} rows are not {} sequences of {}", rows, batch, sequence));
  }
  if (rows >= 0 && uses_sequence && rows % sequence != 0) {
    refuse_operator(op, fmt::format("{} rows are not whole sequences of {}", rows, sequence));
  }
  if (uses_heads && heads >= 0 && (kv_heads < 1 || heads < 1 || heads % kv_heads != 0)) {
    refuse_operator(op, fmt::format("{} heads do not divide among {} key/value heads", heads, kv_heads));
  }
}

}  // namespace

void check_row_map(const OpInstance& op, int64_t rows) {
  const char* fault = row_map_fault(op.attributes, rows);
  if (fault != nullptr) refuse_operator(op, fault);
}

void refuse_operator(const OpInstance& op, std::string cause) {
  throw_bad_input(fmt::format("operator {} on the cpu device", name_of(op.kind)), std::move(cause),
                  "give the operands and attributes that ops/op.h describes for this kind");
}

void check_operands(const OpInstance& op, std::string_view pattern) {
  const size_t arrow = pattern.find("->");
  Symbols symbols = symbols_of(op.attributes);
  check_side(op, parse_side(pattern.substr(0, arrow)), op.inputs, "input", symbols);
  check_side(op, parse_side(pattern.substr(arrow + 2)), op.outputs, "output", symbols);
  check_relations(op, symbols, pattern);
}

}  // namespace foresail
