// Operand patterns: a small language for the shapes that ops/op.h states in words, so that a wrong Program is refused
// when it is bound and cannot read outside its buffers.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

struct Operand {
  std::string dims;  ///< between the brackets
  std::vector<DType> dtypes{DType::f64};
  bool optional = false;
};

struct Pattern {
  std::vector<Operand> inputs, outputs;
};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

Pattern parse(std::string_view text) {
  Pattern pattern;
  std::vector<Operand>* side = &pattern.inputs;
  for (std::string word : split(text, ' ')) {
    if (word == "->") {
      side = &pattern.outputs;
      continue;
    }
    Operand operand;
    if (word.starts_with("?")) {
      operand.optional = true;
      word.erase(0, 1);
    }
    if (word.starts_with("i32")) operand.dtypes = {DType::i32};
    if (word.starts_with("table") || word.starts_with("real")) operand.dtypes = {DType::f64, DType::f32};
    word.erase(0, word.find('['));
    ensure(word.size() > 2 && word.front() == '[' && word.back() == ']', "an operand pattern reads [dims]");
    operand.dims = word.substr(1, word.size() - 2);
    side->push_back(operand);
  }
  return pattern;
}

/// Values of the symbols, and the shape that [*] stands for.
struct Bindings {
  std::map<std::string, int64_t> symbols;
  std::vector<int64_t> any_shape;
  bool any_bound = false;
};

Bindings bind_attributes(const OpAttributes& attributes) {
  Bindings bindings;
  const int64_t heads = attributes.heads, kv_heads = attributes.kv_heads, head_dim = attributes.head_dim;
  const auto bind = [&](const char* symbol, int64_t value) {
    if (value > 0) bindings.symbols[symbol] = value;
  };
  bind("S", attributes.sequence_length);
  bind("A", heads);
  bind("G", kv_heads);
  bind("D", head_dim);
  bind("RO", attributes.rotated_width());
  bind("RO2", attributes.rotated_width() / 2);
  bind("C", attributes.context_parallel);
  if (heads > 0 && kv_heads > 0 && head_dim > 0) {
    bind("QKV", attributes.qkv_columns());
    bind("AD", attributes.q_columns());
    bind("KV", attributes.kv_columns());
    bind("AW", attributes.o_columns());
    bind("LKV", heads * (head_dim - attributes.rope_dim + attributes.value_width()));
    bind("AG", heads + kv_heads);
  }
  return bindings;
}

/// Symbols whose values only attributes give: unset, they fit nothing.
bool is_attribute(const std::string& symbol) {
  static const std::set<std::string> kSymbols{"S",   "A",  "G",  "D",  "RO",  "RO2", "C",
                                              "QKV", "AD", "KV", "AW", "LKV", "AG"};
  return kSymbols.count(symbol) != 0;
}

/// True if `size` fits the product `dim`; binds its unbound symbol, if there is one.
bool fits_dim(const std::string& dim, int64_t size, Bindings& bindings) {
  if (size < 0) return false;
  int64_t known = 1;
  std::string unbound;
  for (const std::string& factor : split(dim, '*')) {
    if (factor.find_first_not_of("0123456789") == std::string::npos) {
      known *= std::stoll(factor);
    } else if (const auto found = bindings.symbols.find(factor); found != bindings.symbols.end()) {
      known *= found->second;
    } else if (unbound.empty() && !is_attribute(factor)) {
      unbound = factor;
    } else {
      return false;
    }
  }
  if (unbound.empty()) return size == known;
  if (known <= 0 || size % known != 0) return false;
  bindings.symbols[unbound] = size / known;
  return true;
}

bool fits_any_shape(const TensorType& type, Bindings& bindings) {
  if (!bindings.any_bound) {
    if (std::any_of(type.shape.begin(), type.shape.end(), [](int64_t size) { return size < 0; })) return false;
    bindings.any_shape = type.shape;
    bindings.any_bound = true;
  }
  return type.shape == bindings.any_shape;
}

/// The alternatives of a pattern have different numbers of dimensions.
bool fits_shape(const Operand& operand, const TensorType& type, Bindings& bindings) {
  if (operand.dims == "*") return fits_any_shape(type, bindings);
  for (const std::string& alternative : split(operand.dims, '|')) {
    const std::vector<std::string> dims = split(alternative, ',');
    if (dims.size() != type.shape.size()) continue;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (!fits_dim(dims[i], type.shape[i], bindings)) return false;
    }
    return true;
  }
  return false;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

void check_side(const OpInstance& op, const char* side, const std::vector<Operand>& expected,
                const std::vector<TensorType>& actual, Bindings& bindings) {
  size_t least = expected.size();
  while (least > 0 && expected[least - 1].optional) --least;
  if (actual.size() < least || actual.size() > expected.size()) {
    refuse(op,
           "it has " + std::to_string(actual.size()) + " " + side + "s, expected " + std::to_string(expected.size()));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const std::string operand = std::string(side) + " " + std::to_string(i);
    const std::vector<DType>& dtypes = expected[i].dtypes;
    if (std::find(dtypes.begin(), dtypes.end(), actual[i].dtype) == dtypes.end()) {
      refuse(op, operand + " is " + std::string(name_of(actual[i].dtype)) + ", the reference device takes " +
                     std::string(name_of(dtypes.front())));
    }
    if (!fits_shape(expected[i], actual[i], bindings)) {
      refuse(op, operand + " is " + text_of(actual[i].shape) + ", which does not fit [" + expected[i].dims + "]");
    }
  }
}

/// The dtype that a message should name: of the first operand that is not an integer.
std::string_view dtype_name(const OpInstance& op) {
  for (const auto* side : {&op.outputs, &op.inputs}) {
    for (const TensorType& type : *side) {
      if (type.dtype != DType::i32) return name_of(type.dtype);
    }
  }
  return name_of(DType::i32);
}

}  // namespace

void refuse(const OpInstance& op, const std::string& cause) {
  throw_bad_input("reference device: " + std::string(name_of(op.kind)) + " in " + std::string(dtype_name(op)), cause,
                  "compile the Program for this device, in f64");
}

void require_row_map(const Run& run, int64_t rows) {
  const char* fault = row_map_fault(run.attributes(), rows);
  if (fault != nullptr) refuse(run.op, fault);
}

void check_operands(const OpInstance& op, std::string_view text) {
  const Pattern pattern = parse(text);
  Bindings bindings = bind_attributes(op.attributes);
  check_side(op, "input", pattern.inputs, op.inputs, bindings);
  check_side(op, "output", pattern.outputs, op.outputs, bindings);
}

}  // namespace foresail::reference
