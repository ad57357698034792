// An architecture as Hugging Face's config.json describes it: sizes and switches, no family name beyond the label.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ops/graph.h"
#include "ops/op.h"

namespace foresail {

enum class NormKind : uint8_t { layer_norm, rms_norm };
enum class ActivationKind : uint8_t { gelu_tanh, swiglu };
enum class PositionKind : uint8_t { learned, rope };

/// A mixture of experts in place of the dense FFN (`experts` = 0: none). An expert is a SwiGLU of width `expert_ffn`.
struct ExpertSpec {
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0;
  int64_t shared_ffn = 0;          ///< width of all shared experts together; 0: none
  int64_t first_dense_layers = 0;  ///< leading layers that have a dense FFN
  RouterScoring scoring = RouterScoring::softmax;
  bool correction_bias = false;  ///< added to the scores that choose experts, not to the gates (DeepSeek-V3)
  bool normalise_gates = true;   ///< the gates of a token sum to 1 before `gate_scale`
  double gate_scale = 1;
  int64_t groups = 1, groups_per_token = 1;  ///< a token's experts come from its best groups; 1 and 1: no groups
  GroupScore group_score = GroupScore::best_expert;
  double balance_coefficient = 0;  ///< of the load-balance loss, per sequence
  double z_coefficient = 0;        ///< of the router z loss (Zoph et al. 2022, equation 5)
  bool operator==(const ExpertSpec&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2, section 2.1); `kv_rank` = 0: none. ModelSpec::head_dim is then that of
/// queries and keys: nope_dim + rope_dim.
struct LatentAttentionSpec {
  int64_t query_rank = 0;  ///< 0: queries are not compressed
  int64_t kv_rank = 0;
  int64_t nope_dim = 0, rope_dim = 0, value_dim = 0;
  bool operator==(const LatentAttentionSpec&) const = default;
};

struct ModelSpec {
  std::string name;    ///< catalogue name or the config's folder
  std::string family;  ///< "model_type" of its config ("gpt2", "deepseek_v3"): names its weights, a label for people
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
  int64_t max_positions = 0;
  NormKind norm = NormKind::rms_norm;
  double norm_epsilon = 1e-6;
  ActivationKind activation = ActivationKind::swiglu;
  PositionKind positions = PositionKind::rope;
  bool qkv_bias = false, attention_out_bias = false, mlp_bias = false;
  bool qk_norm = false;
  bool tied_embeddings = false;
  int64_t sliding_window = 0;  ///< 0: full causal attention
  double rope_theta = 10000;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1, rope_low_frequency = 1, rope_high_frequency = 4;
  int64_t rope_original_positions = 0;
  // YaRN (Peng et al. 2023) alone: turns where interpolation begins and ends, what cosines and sines are multiplied by
  // (0: follows from the factor), DeepSeek's two weights of that (0: not stated).
  double rope_beta_fast = 32, rope_beta_slow = 1, rope_attention_factor = 0;
  double rope_mscale = 0, rope_mscale_all_dim = 0;
  double attention_dropout = 0, residual_dropout = 0, embedding_dropout = 0;
  double init_standard_deviation = 0.02;
  ExpertSpec moe;
  LatentAttentionSpec latent;
  bool scale_residual_init = false;  ///< GPT-2: output projections at std / sqrt(2 layers)
};

/// MODEL on the command line: a catalogue name, a path to a config.json or to a folder that holds one.
/// Throws bad_input naming file, field and mend.
ModelSpec load_model(const std::string& name_or_path);
/// Parses a Hugging Face config; `source` names it in errors.
ModelSpec parse_model_config(const std::string& json_text, const std::string& source);
/// A config.json that Hugging Face's transformers reads back to the same architecture.
std::string write_model_config(const ModelSpec& model);
std::vector<std::string> catalogue_model_names();

/// Layer `layer` (from 0) is an `expert_block`, the others are a `block`.
bool is_expert_layer(const ModelSpec& model, int64_t layer);

/// The graphs of the kinds of layer, not cut by tensor parallelism, for `micro_batch` sequences of
/// `sequence_length` tokens; a context-parallel rank's graph has its share of the rows of each sequence.
struct ModelGraphs {
  Graph embedding;  ///< tokens -> hidden states
  Graph block;      ///< hidden states -> hidden states, with a dense FFN; in no layer of a model that has only experts
  Graph expert_block;  ///< the same with a mixture of experts; empty if no layer has one
  Graph head;          ///< hidden states, targets -> loss (cross_entropy_stats .. cross_entropy_loss)
};

struct GraphOptions {
  int64_t micro_batch = 1;
  int64_t sequence_length = 0;  ///< of whole sequences
  Precision precision;
  bool unfused_attention = false;  ///< materialise scores, as stacks before flash attention do
  int64_t context_parallel = 1;    ///< ranks that share each sequence
  int64_t kv_copies =
      1;  ///< tensor-parallel ranks that will hold the same KV head; above 1, q and kv are products apart
};

/// Throws bad_input if the model cannot run with these sizes (sequence longer than a learned position table, ...).
ModelGraphs build_graphs(const ModelSpec& model, const GraphOptions& options);

int64_t parameter_count(const ModelSpec& model);
/// Parameters without the experts that a token is not sent to.
int64_t active_parameter_count(const ModelSpec& model);
/// Parameters that a token meets in a matrix product: head and its own experts yes; embedding look-up, norms and biases
/// no.
int64_t matrix_parameters(const ModelSpec& model);
/// 6 x matrix_parameters + 12 x layers x heads x head_dim x sequence_length; head_dim is the mean of that of queries and
/// keys and that of values where they differ.
double training_flops_per_token(const ModelSpec& model, int64_t sequence_length);

}  // namespace foresail
