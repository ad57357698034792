// The operator graph of one kind of layer: what models/ describes and program/ transforms. Tensors carry symbolic
// dimensions, so that sharding is a statement about names ("the FFN dimension is cut"), not about shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/op.h"

namespace foresail {

/// The name of a dimension. Tensor parallelism cuts those listed in `cut_by_tensor_parallelism`.
enum class DimName : uint8_t {
  fixed,      ///< never cut: statistics columns, head_dim, ...
  tokens,     ///< rows of a micro-batch
  sequences,  ///< sequences of a micro-batch
  position,   ///< sequence_length or the rows of a position table
  hidden,
  qkv,  ///< packed rows: heads * head_dim, then kv
  heads,
  qk_heads,   ///< heads + kv_heads
  attention,  ///< heads * head_dim, or heads * value width
  kv,  ///< kv_heads * (key + value width); several tp ranks hold the same KV head if there are fewer heads than ranks
  ffn,
  gate_up,  ///< 2 * ffn
  vocabulary,
  experts,         ///< cut by expert parallelism
  expert_ffn,      ///< FFN columns of one expert; cut by the experts' own tensor parallelism
  expert_gate_up,  ///< 2 * expert_ffn
  expert_rows,     ///< rows of a buffer of routed rows
};

bool cut_by_tensor_parallelism(DimName name);

struct Dim {
  DimName name = DimName::fixed;
  int64_t size = 0;  ///< in a model graph the global size; after sharding this rank's
  bool operator==(const Dim&) const = default;
};

/// How a logical tensor is initialised; element (r, c) of the logical tensor draws at position r * columns + c.
enum class InitKind : uint8_t { zeros, ones, normal };
struct Init {
  InitKind kind = InitKind::zeros;
  double standard_deviation = 0;
};

/// A run of rows (dimension 0) of a packed weight, taken from one logical tensor. A weight is packed when one matrix
/// product serves several logical tensors (q, k, v) or row groups; tensor parallelism cuts every part by itself.
struct WeightPart {
  std::string tensor;               ///< Hugging Face name; "{}" stands for the layer number
  int64_t rows = 0;                 ///< global rows of this part
  int64_t tensor_rows = 0;          ///< rows of the whole logical tensor
  int64_t first_row = 0;            ///< where this part begins in it
  bool transposed_in_file = false;  ///< Hugging Face stores it [in, out] (GPT-2's Conv1D)
};

struct Weight {
  std::string name;               ///< within its layer: "qkv", "norm_1"
  std::vector<Dim> dims;          ///< [out, in] or [n]
  std::vector<WeightPart> parts;  ///< their rows add up to dims[0]
  Init init;
  bool decay = true;    ///< weight decay applies (false for norms and biases)
  std::string tied_to;  ///< name of the weight of the embedding unit that this one is, or empty
  bool frozen = false;  ///< keeps its values: backward makes no gradient for it alone
};

enum class TensorRole : uint8_t {
  activation,
  layer_input,   ///< hidden states [T,H] that enter the layer
  layer_output,  ///< hidden states that leave it
  tokens,        ///< i32 [T]
  targets,       ///< i32 [T]
  constant,      ///< made once at start (rope table)
  weight,
  weight_gradient,  ///< accumulator
  output_gradient,  ///< gradient of the layer's output: enters backward
  input_gradient,   ///< gradient of the layer's input: leaves backward
  loss,             ///< f64 [1] accumulator in the metrics record
  auxiliary_loss,   ///< f64 [1], likewise: what routers add to the loss; backward begins at it, too
  overflow,         ///< f64 [1], likewise: routed rows that did not fit
};

struct GraphTensor {
  std::string name;
  TensorRole role = TensorRole::activation;
  DType dtype = DType::f32;
  std::vector<Dim> dims;
  int weight = -1;  ///< index into Graph::weights for weights and their gradients

  TensorType type() const;
};

/// Communication inside a layer that sharding inserts; a node of kind `none` is an operator.
enum class NodeCollective : uint8_t {
  none,
  all_reduce_tensor,      ///< partial sums over tp -> their sum; in place
  all_gather_tensor,      ///< [..] -> [P, ..] over tp
  all_gather_rows,        ///< sequence parallelism: [T/P, ..] -> [T, ..] over tp
  reduce_scatter_rows,    ///< sequence parallelism: partial sums [T, ..] -> this rank's rows of their sum [T/P, ..]
  all_to_all_context,     ///< [C, ..] -> [C, ..] over cp: part c goes to context rank c
  ring_shift_context,     ///< [..] -> what the previous context rank had
  all_reduce_context,     ///< partial sums over cp -> their sum; in place
  all_to_all_expert,      ///< [N*C, ..] -> [N*C, ..] over the expert group: part n goes to expert rank n
  all_gather_expert,      ///< [R, ..] -> [P*R, ..] over the ranks that share each expert
  reduce_scatter_expert,  ///< partial sums [P*R, ..] -> this rank's rows of their sum [R, ..] over the same ranks
};

struct Node {
  OpKind kind{};
  NodeCollective collective = NodeCollective::none;
  OpAttributes attributes;
  std::vector<int> inputs, outputs;  ///< indices into Graph::tensors
  /// Bit i: the gradient of input i that this node's derivative yields is only this tensor-parallel rank's share.
  uint32_t partial_gradient_inputs = 0;
};

/// True if the node makes no new values: its outputs are elements of its inputs, of this rank or another, in another order.
/// Keeping such an output for backward buys little; what it was made from serves as well.
bool moves_data_only(const Node& node);

/// One kind of layer. Nodes stand in an order in which they can run.
struct Graph {
  std::string name;  ///< "embedding", "block", "head"
  std::vector<GraphTensor> tensors;
  std::vector<Node> nodes;
  std::vector<Weight> weights;
  DType weight_gradient = DType::f32;  ///< element type of the accumulators of weight gradients

  /// Index of the only tensor with this role, -1 if there is none.
  int find(TensorRole role) const;
};

/// Builds a graph; the shapes of outputs follow from the op table.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name, const Precision& precision);

  int input(std::string name, TensorRole role, DType dtype, std::vector<Dim> dims);
  int weight(Weight weight);
  /// Appends a node; `names` names its outputs. Returns their tensor indices. Throws (ensure) on operands that do not fit.
  std::vector<int> add(OpKind kind, const OpAttributes& attributes, const std::vector<int>& inputs,
                       const std::vector<std::string>& names);
  void set_role(int tensor, TensorRole role);
  const std::vector<Dim>& dims(int tensor) const;
  Graph finish();

 private:
  Graph graph_;
  Precision precision_;
};

}  // namespace foresail
