#include "tests/program/small_models.h"

#include "core/error.h"

namespace foresail::testing {

ModelSpec small_llama() {
  ModelSpec model;
  model.name = "small-llama";
  model.family = "llama";
  model.layers = 4;
  model.hidden = 32;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.ffn = 48;
  model.vocabulary = 67;
  model.max_positions = 64;
  return model;
}

ModelSpec small_gpt2() {
  ModelSpec model = small_llama();
  model.name = "small-gpt2";
  model.family = "gpt2";
  model.kv_heads = 4;
  model.norm = NormKind::layer_norm;
  model.activation = ActivationKind::gelu_tanh;
  model.positions = PositionKind::learned;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  model.attention_dropout = model.residual_dropout = model.embedding_dropout = 0.1;
  model.scale_residual_init = true;
  return model;
}

ModelSpec small_qwen3() {
  ModelSpec model = small_llama();
  model.name = "small-qwen3";
  model.family = "qwen3";
  model.head_dim = 16;
  model.qk_norm = true;
  model.tied_embeddings = true;
  return model;
}

ModelSpec small_uneven() {
  ModelSpec model = small_llama();
  model.name = "small-uneven";
  model.layers = 6;
  model.heads = 6;
  model.kv_heads = 1;
  model.ffn = 47;
  model.vocabulary = 71;
  return model;
}

ModelSpec small_deep() {
  ModelSpec model = small_gpt2();
  model.name = "small-deep";
  model.layers = 8;
  model.hidden = 16;
  model.ffn = 32;
  model.head_dim = 4;
  model.vocabulary = 61;
  model.init_standard_deviation = 0.1;  // thin products need it: else attention has hardly a gradient
  model.tied_embeddings = false;
  return model;
}

ModelSpec small_latent() {
  ModelSpec model = small_llama();
  model.name = "small-latent";
  model.family = "deepseek_v3";
  model.kv_heads = 4;
  model.latent = {.query_rank = 14, .kv_rank = 10, .nope_dim = 6, .rope_dim = 4, .value_dim = 7};
  model.head_dim = 10;
  return model;
}

ModelSpec small_yarn() {
  ModelSpec model = small_latent();
  model.name = "small-yarn";
  model.family = "deepseek_v2";
  model.latent.query_rank = 0;
  model.latent.value_dim = 12;
  model.rope_scaling = RopeScaling::yarn;
  model.rope_theta = 100;
  model.rope_factor = 8;
  model.rope_original_positions = 8;
  model.rope_mscale = 0.7;
  model.rope_mscale_all_dim = 1;
  return model;
}

ModelSpec small_mixtral() {
  ModelSpec model = small_llama();
  model.name = "small-mixtral";
  model.family = "mixtral";
  model.moe.experts = 8;
  model.moe.experts_per_token = 2;
  model.moe.expert_ffn = 25;  // padded where two ranks share an expert
  model.moe.balance_coefficient = 0.05;
  model.moe.z_coefficient = 0.01;
  model.init_standard_deviation = 0.1;  // routers that know what they want: rounding must not change their minds
  return model;
}

ModelSpec small_qwen3_moe() {
  ModelSpec model = small_mixtral();
  model.name = "small-qwen3_moe";
  model.family = "qwen3_moe";
  model.qk_norm = true;
  model.moe.experts = 4;
  model.moe.expert_ffn = 24;
  model.moe.first_dense_layers = 1;
  model.moe.scoring = RouterScoring::sigmoid;
  model.moe.gate_scale = 2;
  model.moe.z_coefficient = 0;
  return model;
}

ModelSpec small_deepseek() {
  ModelSpec model = small_latent();
  model.name = "small-deepseek";
  model.moe = small_qwen3_moe().moe;
  model.moe.experts = 8;
  model.moe.shared_ffn = 18;
  model.moe.correction_bias = true;
  model.moe.groups = 4;
  model.moe.groups_per_token = 2;
  model.moe.group_score = GroupScore::sum_of_best_two;
  model.init_standard_deviation = 0.1;
  return model;
}

ModelSpec small_model(const std::string& name) {
  for (const auto make : {small_llama, small_gpt2, small_qwen3, small_uneven, small_deep, small_latent, small_yarn,
                          small_mixtral, small_qwen3_moe, small_deepseek}) {
    if (make().name == "small-" + name) return make();
  }
  throw_bad_input("model '" + name + "'", "no small model has that name", "see small_models.h");
}

Job small_job(int64_t global_batch, int64_t sequence_length) {
  Job job;
  job.sequence_length = sequence_length;
  job.global_batch = global_batch;
  return job;
}

std::vector<Program> train_programs(const ModelSpec& model, const Job& job, const std::string& strategy,
                                    const Target& target) {
  const Strategy parsed = parse_strategy(strategy).strategy;
  std::vector<Program> programs;
  for (int stage = 0; stage < parsed.pp; ++stage) {
    programs.push_back(compile(model, job, parsed, target, stage).train);
  }
  return programs;
}

}  // namespace foresail::testing
