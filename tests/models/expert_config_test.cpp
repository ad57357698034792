// The config.json of the families with a mixture of experts or latent attention.
#include <gtest/gtest.h>

#include "models/model_spec.h"
#include "models/weight_names.h"
#include "tests/models/refusal.h"

namespace foresail {
namespace {

ModelSpec parse(const std::string& json) { return parse_model_config(json, "some/config.json"); }

TEST(ExpertConfig, MissingKeysTakeMixtralDefaults) {
  const ModelSpec model = parse(R"({"model_type": "mixtral"})");
  EXPECT_EQ(model.ffn, 14336);
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_EQ(model.rope_theta, 1e6);
  EXPECT_EQ(model.sliding_window, 0);
  EXPECT_EQ(model.moe.experts, 8);
  EXPECT_EQ(model.moe.experts_per_token, 2);
  EXPECT_EQ(model.moe.expert_ffn, 14336);
  EXPECT_EQ(model.moe.shared_ffn, 0);
  EXPECT_EQ(model.moe.scoring, RouterScoring::softmax);
  EXPECT_TRUE(model.moe.normalise_gates);
  EXPECT_EQ(model.moe.gate_scale, 1);
  EXPECT_EQ(model.moe.balance_coefficient, 0);
  EXPECT_TRUE(is_expert_layer(model, 0));
}

TEST(ExpertConfig, MissingKeysTakeQwen3MoeDefaults) {
  const ModelSpec model = parse(R"({"model_type": "qwen3_moe"})");
  EXPECT_EQ(model.hidden, 2048);
  EXPECT_EQ(model.layers, 24);
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_TRUE(model.qk_norm);
  EXPECT_FALSE(model.qkv_bias);
  EXPECT_EQ(model.moe.experts, 128);
  EXPECT_EQ(model.moe.experts_per_token, 8);
  EXPECT_EQ(model.moe.expert_ffn, 768);
  EXPECT_FALSE(model.moe.normalise_gates);
}

TEST(ExpertConfig, DeepseekV2FollowsItsPublishedConfig) {
  const ModelSpec model = load_model("deepseek-v2-lite");
  EXPECT_EQ(model.family, "deepseek_v2");
  EXPECT_EQ(model.latent.query_rank, 0);
  EXPECT_EQ(model.latent.kv_rank, 512);
  EXPECT_EQ(model.latent.nope_dim, 128);
  EXPECT_EQ(model.latent.rope_dim, 64);
  EXPECT_EQ(model.latent.value_dim, 128);
  EXPECT_EQ(model.head_dim, 192);
  EXPECT_EQ(model.kv_heads, 16);
  EXPECT_EQ(model.ffn, 10944);
  EXPECT_EQ(model.rope_scaling, RopeScaling::yarn);
  EXPECT_EQ(model.rope_factor, 40);
  EXPECT_EQ(model.rope_original_positions, 4096);
  EXPECT_EQ(model.rope_mscale, 0.707);
  EXPECT_EQ(model.rope_mscale_all_dim, 0.707);
  EXPECT_EQ(model.moe.experts, 64);
  EXPECT_EQ(model.moe.experts_per_token, 6);
  EXPECT_EQ(model.moe.expert_ffn, 1408);
  EXPECT_EQ(model.moe.shared_ffn, 2816);
  EXPECT_EQ(model.moe.first_dense_layers, 1);
  EXPECT_EQ(model.moe.scoring, RouterScoring::softmax);
  EXPECT_FALSE(model.moe.normalise_gates || model.moe.correction_bias);
  EXPECT_EQ(model.moe.groups, 1);
  EXPECT_EQ(model.moe.balance_coefficient, 0.001);
  EXPECT_FALSE(is_expert_layer(model, 0));
  EXPECT_TRUE(is_expert_layer(model, 1));
}

TEST(ExpertConfig, DeepseekV3FollowsItsPublishedConfig) {
  const ModelSpec model = load_model("deepseek-v3");
  EXPECT_EQ(model.latent.query_rank, 1536);
  EXPECT_EQ(model.moe.scoring, RouterScoring::sigmoid);
  EXPECT_TRUE(model.moe.normalise_gates && model.moe.correction_bias);
  EXPECT_EQ(model.moe.gate_scale, 2.5);
  EXPECT_EQ(model.moe.groups, 8);
  EXPECT_EQ(model.moe.groups_per_token, 4);
  EXPECT_EQ(model.moe.group_score, GroupScore::sum_of_best_two);
  EXPECT_EQ(model.moe.shared_ffn, 2048);
  EXPECT_EQ(model.moe.first_dense_layers, 3);
}

TEST(ExpertConfig, DeepseekV2TakesGroupsOnlyWithTheirMethod) {
  const std::string head = R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3)";
  const ModelSpec limited = parse(head + R"(, "topk_method": "group_limited_greedy"})");
  EXPECT_EQ(limited.moe.groups, 8);
  EXPECT_EQ(limited.moe.groups_per_token, 3);
  EXPECT_EQ(limited.moe.group_score, GroupScore::best_expert);
  EXPECT_EQ(parse(head + "}").moe.groups, 1);
}

TEST(ExpertConfig, DeepseekWithoutExpertLayersIsDense) {
  const ModelSpec none = parse(R"({"model_type": "deepseek_v3", "n_routed_experts": null})");
  const ModelSpec late = parse(R"({"model_type": "deepseek_v3", "num_hidden_layers": 3, "first_k_dense_replace": 3})");
  for (const ModelSpec& model : {none, late}) {
    EXPECT_EQ(model.moe.experts, 0);
    EXPECT_FALSE(is_expert_layer(model, model.layers - 1));
  }
}

TEST(ExpertConfig, RouterLossesArePerSequence) {
  const ModelSpec model = parse(R"({"model_type": "mixtral", "aux_loss_alpha": 0.01, "router_z_loss_coef": 0.002})");
  EXPECT_EQ(model.moe.balance_coefficient, 0.01);
  EXPECT_EQ(model.moe.z_coefficient, 0.002);
  const std::string v2 = R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6, )";
  EXPECT_EQ(parse(v2 + R"("aux_loss_alpha": 0, "seq_aux": false})").moe.balance_coefficient, 0);
}

TEST(ExpertConfig, LeadingDenseLayersOfQwen3MoeAreRead) {
  const ModelSpec model = parse(R"({"model_type": "qwen3_moe", "mlp_only_layers": [0, 1]})");
  EXPECT_EQ(model.moe.first_dense_layers, 2);
  EXPECT_FALSE(is_expert_layer(model, 1));
  EXPECT_TRUE(is_expert_layer(model, 2));
}

TEST(ExpertConfig, QuantizationOfDeepseekV3IsNotImportedButItsArchitectureIs) {
  const ModelSpec model = parse(R"({"model_type": "deepseek_v3", "quantization_config": {"quant_method": "fp8"}})");
  EXPECT_EQ(model.layers, 61);
  EXPECT_EQ(write_model_config(model).find("quantization_config"), std::string::npos);
}

TEST(ExpertConfig, YarnScalingIsReadWithItsDefaults) {
  const ModelSpec model = parse(R"({"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}})");
  EXPECT_EQ(model.rope_scaling, RopeScaling::yarn);
  EXPECT_EQ(model.rope_factor, 4);
  EXPECT_EQ(model.rope_original_positions, 32768);  // max_position_embeddings where it is not stated
  EXPECT_EQ(model.rope_beta_fast, 32);
  EXPECT_EQ(model.rope_beta_slow, 1);
  EXPECT_EQ(model.rope_attention_factor, 0);
}

TEST(ExpertConfig, NamesOfWeightsAreThoseOnDisk) {
  const ExpertNames& mixtral = weight_names(load_model("mixtral-8x7b")).experts;
  EXPECT_EQ(mixtral.router, "model.layers.{}.block_sparse_moe.gate");
  EXPECT_EQ(expert_name(mixtral.gate, 3), "model.layers.{}.block_sparse_moe.experts.3.w1");
  EXPECT_EQ(expert_name(mixtral.up, 3), "model.layers.{}.block_sparse_moe.experts.3.w3");
  EXPECT_EQ(expert_name(mixtral.down, 3), "model.layers.{}.block_sparse_moe.experts.3.w2");
  const WeightNames& deepseek = weight_names(load_model("deepseek-v3"));
  EXPECT_EQ(deepseek.latent.kv_down, "model.layers.{}.self_attn.kv_a_proj_with_mqa");
  EXPECT_EQ(deepseek.experts.correction_bias, "model.layers.{}.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(expert_name(deepseek.experts.down, 255), "model.layers.{}.mlp.experts.255.down_proj");
}

TEST(ExpertConfig, ExpertsThatCannotBeChosenAreRefused) {
  expect_refused(R"({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3})",
                 {"num_experts_per_tok", "3 of 2"});
  expect_refused(R"({"model_type": "mixtral", "num_local_experts": 0})", {"num_local_experts"});
  expect_refused(R"({"model_type": "mixtral", "num_local_experts": 8, "num_experts": 4})", {"num_experts"});
  expect_refused(R"({"model_type": "mixtral", "num_local_experts": 16384})", {"num_local_experts"});
  expect_refused(R"({"model_type": "deepseek_v3", "n_group": 7})", {"n_group", "7"});
  expect_refused(R"({"model_type": "deepseek_v3", "topk_group": 9})", {"topk_group"});
  expect_refused(R"({"model_type": "deepseek_v3", "n_group": 128, "topk_group": 2})", {"topk_group"});
  expect_refused(R"({"model_type": "deepseek_v3", "n_group": 256, "topk_group": 200})", {"n_group"});
  expect_refused(R"({"model_type": "deepseek_v2"})", {"num_experts_per_tok"});
}

TEST(ExpertConfig, LayersThatDifferInTheirExpertsAreRefused) {
  expect_refused(R"({"model_type": "qwen3_moe", "decoder_sparse_step": 2})", {"decoder_sparse_step"});
  expect_refused(R"({"model_type": "qwen3_moe", "mlp_only_layers": [3]})", {"mlp_only_layers"});
  expect_refused(R"({"model_type": "qwen3_moe", "num_hidden_layers": 2, "mlp_only_layers": [0, 1]})",
                 {"mlp_only_layers"});
  expect_refused(R"({"model_type": "deepseek_v3", "moe_layer_freq": 2})", {"moe_layer_freq"});
}

TEST(ExpertConfig, LossesAndNoiseThatDependOnTheCutAreRefused) {
  expect_refused(R"({"model_type": "mixtral", "output_router_logits": true})", {"output_router_logits"});
  expect_refused(R"({"model_type": "mixtral", "router_jitter_noise": 0.1})", {"router_jitter_noise"});
  expect_refused(R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6, "aux_loss_alpha": 0.1, "seq_aux": false})",
                 {"seq_aux"});
}

TEST(ExpertConfig, RoutersOfAnotherKindAreRefused) {
  expect_refused(R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6, "scoring_func": "sigmoid"})",
                 {"scoring_func", "sigmoid"});
  expect_refused(R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6, "topk_method": "noaux_tc"})",
                 {"topk_method", "noaux_tc"});
  expect_refused(R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6, "norm_topk_prob": true})",
                 {"norm_topk_prob"});
  expect_refused(R"({"model_type": "deepseek_v3", "scoring_func": "softmax"})", {"scoring_func", "softmax"});
  expect_refused(R"({"model_type": "deepseek_v3", "topk_method": "greedy"})", {"topk_method", "greedy"});
}

TEST(ExpertConfig, LatentAttentionOfAnotherKindIsRefused) {
  expect_refused(R"({"model_type": "deepseek_v3", "attention_bias": true})", {"attention_bias"});
  expect_refused(R"({"model_type": "deepseek_v3", "rope_interleave": false})", {"rope_interleave"});
  expect_refused(R"({"model_type": "deepseek_v3", "num_key_value_heads": 64})", {"num_key_value_heads"});
  expect_refused(R"({"model_type": "deepseek_v3", "qk_rope_head_dim": 63})", {"qk_rope_head_dim", "63"});
  expect_refused(R"({"model_type": "deepseek_v3", "head_dim": 192})", {"head_dim"});
  expect_refused(R"({"model_type": "deepseek_v3", "kv_lora_rank": 0})", {"kv_lora_rank"});
}

TEST(ExpertConfig, YarnThatPublishedCodeDisagreesOnIsRefused) {
  const std::string head = R"({"model_type": "deepseek_v3", "rope_scaling": {"type": "yarn", "factor": 40, )";
  expect_refused(head + R"("mscale": 1.0}})", {"rope_scaling.mscale_all_dim"});
  expect_refused(head + R"("mscale_all_dim": 1.0}})", {"rope_scaling.mscale"});
  expect_refused(head + R"("truncate": false}})", {"rope_scaling.truncate"});
  expect_refused(head + R"("beta_fast": 1, "beta_slow": 2}})", {"rope_scaling.beta_fast"});
}

}  // namespace
}  // namespace foresail
