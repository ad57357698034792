// What can be computed: the kinds of operator, their attributes and operands. No kernel lives here; how a back end runs
// an operator is its own matter. The operand conventions below bind every back end.
//
// Notation: T rows (tokens of a micro-batch = sequences x S), S = sequence_length, H = hidden, A heads and G KV heads on
// this rank, D = head_dim of queries and keys, W = value_dim of values (D unless said), F = FFN columns on this rank,
// V = vocabulary rows on this rank, P = tensor-parallel degree,
// C = context-parallel degree (`context_parallel`). Under context parallelism S is what a rank holds of each sequence;
// which positions those are, ops/zigzag.h says; rows and positions of a tensor: kernels/row_map.h.
// Mixture of experts: E experts in the model, N expert-parallel ranks (`expert_ranks`), L = E/N experts of a rank, K experts
// per token, R rows of a buffer of routed rows; B sequences of the micro-batch.
// "accum" outputs are read, added to and written back. Tensors are dense and row-major.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace foresail {

enum class OpKind : uint8_t {
  // Embedding.
  embedding,                    ///< tokens i32[T], table[V,H] -> y[T,H]; rows outside [tp_rank*V, +V) give 0
  embedding_backward,           ///< dy[T,H], tokens i32[T] -> accum dtable[V,H]; deterministic
  position_embedding,           ///< x[T,H], table[M,H] -> y = x + table[position of the row]
  position_embedding_backward,  ///< dy[T,H] -> accum dtable[M,H] (only rows of positions that this rank holds)
  // Norms. `epsilon`.
  rms_norm,             ///< x[T,H], w[H] -> y[T,H], rstd[T]
  rms_norm_backward,    ///< dy, x, w, rstd [, addend[T,H]] -> dx (+ addend), accum dw[H]; dx may be addend or dy
  layer_norm,           ///< x[T,H], w[H], b[H] -> y[T,H], mean[T], rstd[T]
  layer_norm_backward,  ///< dy, x, w, mean, rstd [, addend] -> dx (+ addend), accum dw[H], accum db[H]
  add_rms_norm,         ///< x, r, w -> sum = x + r, y = rms_norm(sum), rstd; sum may be x or r
  add_layer_norm,       ///< x, r, w, b -> sum, y, mean, rstd
  qk_norm,           ///< qkv[T,(A+2G)D], qw[D], kw[D] -> qkv' (q and k heads normed, v copied), rstd[T,A+G]; in place
  qk_norm_backward,  ///< dqkv', qkv, qw, kw, rstd -> dqkv, accum dqw[D], accum dkw[D]; dqkv may be dqkv'
  // Matrix products. Weights are [out, in].
  linear,                  ///< x[T,K], w[N,K] [, bias[N]] -> y[T,N]
  linear_backward_input,   ///< dy[T,N], w[N,K] -> dx[T,K]
  linear_backward_weight,  ///< dy[T,N], x[T,K] -> accum dw[N,K]
  bias_add,                ///< x[T,N], bias[N] -> x + bias; in place allowed (row-parallel bias: after the sum over tp)
  bias_backward,           ///< dy[T,N] -> accum db[N]
  // Attention. Packed rows [T,(A+G)D+GW]: A query heads, then G key heads, each D wide, then G value heads, W wide.
  rope_table,          ///< -> table f32[S*C,R/2,2] (cos, sin) times `rope_magnitude`, R = D or `rope_dim`; run at start
  rope,                ///< qkv, table -> qkv' (q and k rotated half-split, v copied); in place allowed
  rope_backward,       ///< dqkv', table -> dqkv; in place allowed
  attention,           ///< qkv -> o[T,A*W], lse[T/S,A,S]; causal, `scale`, `window` (0: none), dropout `probability`
  attention_backward,  ///< do, qkv, o, lse -> dqkv
  attention_scores,    ///< unfused: qkv -> scores[T/S,A,S,S] = scale * q k^T (entries above the diagonal undefined)
  attention_softmax,   ///< scores -> p, causal, in place allowed; entries above the diagonal become 0
  attention_context,   ///< p[T/S,A,S,S], qkv -> o[T,A*W]
  attention_scores_backward,   ///< dscores, qkv -> accum dqkv (q and k parts)
  attention_softmax_backward,  ///< dp, p -> dscores; in place allowed
  attention_context_backward,  ///< do, p, qkv -> dp, dqkv (v part set, q and k parts set to 0)
  split_qkv,                   ///< qkv -> q[T,A*D], kv[T,G(D+W)] (key heads, then value heads)
  join_qkv,                    ///< q, kv -> qkv; each is the other's derivative
  // Latent attention, G = A, R = rope_dim, N = D - R: pairs of neighbours (2i, 2i+1) of the last R of a head are rotated.
  latent_join,           ///< q[T,A(N+R)], kv[T,A(N+W)], k_rope[T,R], table -> qkv; all heads share the rotated k_rope
  latent_join_backward,  ///< dqkv, table -> dq, dkv, dk_rope (summed over the heads)
  // Context parallelism. A ring step attends to the keys and values that began at context rank (own - `ring_step`) mod C.
  // dkv belongs to those keys and values: it travels with them.
  ring_attention,           ///< q, kv [, o, lse of the steps before] -> o, lse of all steps so far; in place allowed
  ring_attention_backward,  ///< do, q, kv, o, lse (final) [, dq, dkv so far] -> dq[T,A*D], dkv[T,G(D+W)]; in place allowed
  heads_split,  ///< x[T,W] -> [C,T,W/C]: part c has the c-th share of the q, k and v heads (kv_heads = 0: of the heads);
                ///< `heads` and `kv_heads` are those of x, here and in heads_merge
  heads_merge,  ///< [C,T,W/C] -> x[T,W]; each is the other's derivative
  rows_merge,   ///< [C,T,W] -> x[C*T,W]: rows of context rank c go to their positions in whole sequences
  rows_split,   ///< x[C*T,W] -> [C,T,W]; each is the other's derivative
  // Mixture of experts. A router gives every row its K experts (`experts`, `experts_per_token`, `scoring`, groups) and a
  // gate for each. Dispatch puts a row's copies where all-to-all takes them: send[R,H] has R/N rows for every expert rank,
  // those of its experts one after the other, the rows of an expert in their order, then zeros. counts[N*L] are the rows of
  // each. What arrives has the same form, source by source: M sources, counts[M*L], R/M rows each.
  moe_route,  ///< logits[T,E] [, bias[E]] -> index i32[T,K], gate[T,K]: the largest scores + bias (ties: the lower
              ///< expert), best first; gates are scores without the bias
  moe_route_backward,  ///< dgate[T,K], logits, index -> dlogits[T,E]
  moe_statistics,  ///< logits[T,E], index, targets i32[T] -> stats[B,3,E] of this rank's rows, by sequence: [b,0,e] choices
                   ///< of expert e, [b,1,e] sum of its probabilities, [b,2,0] valid targets, [b,2,1] rows, the rest 0
  moe_balance_loss,  ///< logits, targets, stats (summed over the ranks that share the sequences) -> accum auxiliary loss f64[1]:
                     ///< this rank's share of balance and z loss
  moe_balance_backward,  ///< logits, targets, stats -> dlogits of both losses; the counts are constants
  moe_dispatch,  ///< x[T,H], index -> send[R,H], slot i32[T,K] (row of send, -1: did not fit), counts i32[N*L], accum
                 ///< overflow f64[1] (rows that did not fit)
  moe_dispatch_backward,          ///< dsend[R,H], slot -> dx[T,H]
  expert_linear,                  ///< x[R,J], w[L,O,J], counts i32[M*L] -> y[R,O]; rows that are not in use become 0
  expert_linear_backward_input,   ///< dy[R,O], w, counts -> dx[R,J]; rows that are not in use become 0
  expert_linear_backward_weight,  ///< dy, x, counts -> accum dw[L,O,J]; sources in their order
  moe_combine,                    ///< rows[R,H], slot i32[T,K], gate[T,K] -> y[T,H] = sum of gate * rows[slot]
  moe_combine_backward,           ///< dy[T,H], rows, slot, gate -> drows[R,H] (0 where nobody reads), dgate[T,K]
  // Element-wise.
  gelu,                ///< x -> y, tanh approximation
  gelu_backward,       ///< dy, x -> dx
  bias_gelu,           ///< x[T,F], bias[F] -> y = gelu(x + bias)
  bias_gelu_backward,  ///< dy, x, bias -> dx (the gradient of x + bias)
  swiglu,              ///< gu[T,2F] (gate columns, then up columns) -> y[T,F] = silu(gate) * up
  swiglu_backward,     ///< dy[T,F], gu -> dgu[T,2F]; in place over gu allowed
  add,                 ///< a, b -> a + b in the type of a (b may have another); in place allowed where they agree
  copy,                ///< x -> x
  cast,                ///< x -> x in the output's element type
  dropout,             ///< x -> x * mask / (1 - probability); its own derivative; in place allowed; `random_site`
  // Loss. Targets < 0 are not counted. The weight of a token is StepInputs::inverse_valid_tokens.
  cross_entropy_stats,  ///< logits[T,V], targets i32[T] -> stats[T,3] = local max, sum exp(x - max), target logit or 0
  cross_entropy_backward,  ///< logits[T,V], targets, stats[P,T,3] -> dlogits (in place), accum loss f64[1]
  cross_entropy_loss,      ///< logits (not read), targets, stats[P,T,3] -> accum loss f64[1]
  cross_entropy,           ///< fused for P = 1: logits, targets -> dlogits (in place), accum loss f64[1]
  // Step bookkeeping and optimizer. n = elements of a flat range.
  fill_zero,     ///< -> x[n] = 0
  squared_norm,  ///< g[n], in any type that accumulates -> accum sum f64[1]; counted only where `count_rule` says so
  clip_scale,    ///< metrics f64[6] (ops/metrics_record.h) -> metrics: gradient norm, unscaled; factor
                 ///< min(1, clip_norm / norm) / loss_scale, 0 if the norm is not finite or rows overflowed
  adamw,         ///< g[n] (likewise), metrics f64[6] -> p[n], m[n], v[n] [, master[n]] (all read and written); `decay`
  count_
};

inline constexpr int kOpKindCount = static_cast<int>(OpKind::count_);

/// Which ranks of a group add their share to a sum of a quantity that several of them hold.
enum class CountRule : uint8_t {
  every_tensor_rank,  ///< sharded over tp: each tp rank of replica 0 counts its shard
  tensor_rank_zero,   ///< replicated over tp: only tp rank 0 of replica 0 counts
  first_copy,         ///< KV heads held by several tp ranks: only the first of `kv_copies` neighbours counts
  nobody,             ///< a second holder of a tied weight
  every_expert_rank,  ///< experts: every rank of expert replica 0 counts what it holds
};

/// Position encodings by rotation (Su et al. 2021) and their length extensions.
enum class RopeScaling : uint8_t { none, linear, llama3, yarn };

/// How a router turns its logits into the probabilities of experts.
enum class RouterScoring : uint8_t { softmax, sigmoid };
/// How groups of experts are ranked where a token may only use some of them (DeepSeek-V2, section 2.1.2; V3, 2.1.2).
enum class GroupScore : uint8_t { best_expert, sum_of_best_two };

/// The attributes of all kinds in one plain record; a kind reads only its own. Sizes are this rank's.
struct OpAttributes {
  int64_t sequence_length = 0;   ///< rows of each sequence on this rank
  int64_t context_parallel = 1;  ///< degree over which sequences are cut; positions follow from the context rank
  bool rows_cut = false;         ///< sequence parallelism: the rows are this tensor rank's share of the micro-batch
  bool heads_cut = false;        ///< after an all-to-all: `heads` are this context rank's share of the tensor rank's
  int64_t ring_step = 0;         ///< of ring attention
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t value_dim = 0;    ///< of values and of o; 0: head_dim
  int64_t rope_dim = 0;     ///< what is rotated of a head; 0: all of it
  int64_t window = 0;       ///< sliding-window attention: keys within the last `window` positions; 0 = all
  double scale = 0;         ///< of attention scores
  double epsilon = 0;       ///< of norms
  double probability = 0;   ///< of dropout
  int32_t random_site = 0;  ///< which dropout of a block: the random stream is layer * 16 + random_site
  int64_t vocabulary = 0;   ///< logical rows of the whole vocabulary; padded columns are masked
  bool decay = false;       ///< adamw: weight decay applies
  CountRule count_rule = CountRule::every_tensor_rank;
  double rope_theta = 0;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1, rope_low_frequency = 1, rope_high_frequency = 4;
  int64_t rope_original_positions = 0;
  double rope_beta_fast = 32, rope_beta_slow = 1;   ///< YaRN: turns at which interpolation begins, and is complete
  double rope_magnitude = 1;                        ///< factor of cosines and sines
  int64_t experts = 0, experts_per_token = 0;       ///< of the whole model
  int64_t expert_groups = 1, groups_per_token = 1;  ///< a token's experts come from its best groups
  int64_t sequences = 0;                            ///< B of statistics and balance losses
  int64_t expert_ranks = 1;                         ///< degree over which experts are cut
  int64_t expert_rows = 0;                          ///< R of dispatch and combine
  int64_t routed_rows = 0;  ///< of expert_linear: rows in use if routing is even; costs go by it
  RouterScoring scoring = RouterScoring::softmax;
  GroupScore group_score = GroupScore::best_expert;
  bool normalise_gates = true;  ///< the gates of a token sum to 1 before `gate_scale`
  double gate_scale = 1;
  double balance_coefficient = 0;  ///< of the load-balance loss, per sequence
  double z_coefficient = 0;        ///< of the router z loss
  bool operator==(const OpAttributes&) const = default;

  int64_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t rotated_width() const { return rope_dim > 0 ? rope_dim : head_dim; }
  int64_t q_columns() const { return heads * head_dim; }
  int64_t kv_columns() const { return kv_heads * (head_dim + value_width()); }
  int64_t qkv_columns() const { return q_columns() + kv_columns(); }
  int64_t o_columns() const { return heads * value_width(); }
};

/// Element type and sizes of one operand.
struct TensorType {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;

  int64_t elements() const;
  int64_t bytes() const { return elements() * size_of(dtype); }
  bool operator==(const TensorType&) const = default;
};

/// One operator with everything that a kernel, a cost model or a profiler must know.
struct OpInstance {
  OpKind kind{};
  OpAttributes attributes;
  std::vector<TensorType> inputs, outputs;
  bool operator==(const OpInstance&) const = default;
};

std::string_view name_of(OpKind kind);
/// Throws bad_input for an unknown name.
OpKind op_kind_from_name(std::string_view name);

/// A stable text key for cost tables: kind, dtype, operand shapes and the attributes that change the cost
/// ("linear/f32/2048x384,1152x384->2048x1152").
std::string signature(const OpInstance& op);

}  // namespace foresail
