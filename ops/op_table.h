// One row per kind of operator: shape inference, FLOPs, bytes, derivative, what may share a buffer, workspace.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "ops/graph.h"
#include "ops/op.h"

namespace foresail {

/// What bounds an operator; cost models and recompute presets go by it.
enum class OpClass : uint8_t {
  matrix_product,
  attention,
  unfused_attention,
  norm,
  element_wise,
  embedding,
  loss,
  routing,
  optimizer
};

/// An output may take the buffer of an input that nobody reads later.
struct InPlace {
  int output = 0, input = 0;
};

/// The type and symbolic dimensions of one inferred output.
struct InferredTensor {
  DType dtype;
  std::vector<Dim> dims;
};

class GradientBuilder;  // below: gives rules their forward tensors and collects backward nodes

struct OpInfo {
  OpKind kind{};
  std::string_view name;
  OpClass op_class{};
  uint32_t accumulating_outputs = 0;  ///< bit i: output i is read, added to and written
  std::vector<InPlace> in_place;
  /// Outputs from inputs (dims may be symbolic). Kinds that only appear in backward or the optimizer have none.
  std::function<std::vector<InferredTensor>(const std::vector<GraphTensor>& inputs, const OpAttributes&,
                                            const Precision&)>
      infer;
  /// Floating-point operations (a multiply-add counts 2), as executed (causal attention counts what is computed).
  std::function<double(const OpInstance&)> flops;
  /// Bytes that must cross memory at least once; default: all operands, accumulating outputs twice.
  std::function<double(const OpInstance&)> bytes;
  /// Backward rule; empty: not differentiable.
  std::function<void(GradientBuilder&)> derivative;
};

const OpInfo& info(OpKind kind);
double flops_of(const OpInstance& op);
double bytes_of(const OpInstance& op);

/// Emits backward nodes for one forward node.
class GradientBuilder {
 public:
  virtual ~GradientBuilder() = default;
  virtual const Node& node() const = 0;
  /// Forward tensors of the node: using one makes it a saved tensor.
  int input(int i) const { return node().inputs[i]; }
  int output(int i) const { return node().outputs[i]; }
  virtual const GraphTensor& tensor(int index) const = 0;
  /// Gradient that arrives for output i; -1 if none does.
  virtual int output_gradient(int i) = 0;
  /// A new activation gradient shaped like forward tensor `like`.
  virtual int gradient_like(int like) = 0;
  /// The gradient accumulator of a forward weight tensor.
  virtual int weight_gradient(int forward_weight) = 0;
  virtual void emit(OpKind kind, const OpAttributes& attributes, std::vector<int> inputs, std::vector<int> outputs) = 0;
  /// The one contribution made so far to the gradient of input i, for operators that accumulate into it.
  virtual int contributed(int i) = 0;
  /// Says that `gradient` is a contribution to the gradient of the node's input i.
  virtual void contribute(int i, int gradient) = 0;
};

}  // namespace foresail
