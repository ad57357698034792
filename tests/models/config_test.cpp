#include <gtest/gtest.h>

#include "models/model_spec.h"

namespace foresail {
namespace {

ModelSpec parse(const std::string& json) { return parse_model_config(json, "some/config.json"); }

TEST(Config, MissingKeysTakeGpt2Defaults) {
  const ModelSpec model = parse(R"({"model_type": "gpt2"})");
  EXPECT_EQ(model.family, "gpt2");
  EXPECT_EQ(model.name, "some");
  EXPECT_EQ(model.vocabulary, 50257);
  EXPECT_EQ(model.max_positions, 1024);
  EXPECT_EQ(model.hidden, 768);
  EXPECT_EQ(model.layers, 12);
  EXPECT_EQ(model.heads, 12);
  EXPECT_EQ(model.kv_heads, 12);
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.ffn, 3072);
  EXPECT_EQ(model.norm, NormKind::layer_norm);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_EQ(model.activation, ActivationKind::gelu_tanh);
  EXPECT_EQ(model.positions, PositionKind::learned);
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_TRUE(model.qkv_bias && model.attention_out_bias && model.mlp_bias);
  EXPECT_EQ(model.residual_dropout, 0.1);
  EXPECT_EQ(model.embedding_dropout, 0.1);
  EXPECT_EQ(model.attention_dropout, 0.1);
  EXPECT_EQ(model.init_standard_deviation, 0.02);
  EXPECT_TRUE(model.scale_residual_init);
}

TEST(Config, MissingKeysTakeLlamaDefaults) {
  const ModelSpec model = parse(R"({"model_type": "llama"})");
  EXPECT_EQ(model.vocabulary, 32000);
  EXPECT_EQ(model.hidden, 4096);
  EXPECT_EQ(model.ffn, 11008);
  EXPECT_EQ(model.layers, 32);
  EXPECT_EQ(model.heads, 32);
  EXPECT_EQ(model.kv_heads, 32);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.max_positions, 2048);
  EXPECT_EQ(model.norm_epsilon, 1e-6);
  EXPECT_EQ(model.rope_theta, 10000);
  EXPECT_EQ(model.rope_scaling, RopeScaling::none);
  EXPECT_FALSE(model.tied_embeddings || model.qkv_bias || model.attention_out_bias || model.mlp_bias || model.qk_norm);
  EXPECT_EQ(model.attention_dropout, 0);
  EXPECT_EQ(model.sliding_window, 0);
}

TEST(Config, MissingKeysTakeMistralDefaults) {
  const ModelSpec model = parse(R"({"model_type": "mistral"})");
  EXPECT_EQ(model.ffn, 14336);
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.max_positions, 131072);
  EXPECT_EQ(model.sliding_window, 4096);
}

TEST(Config, MissingKeysTakeQwenDefaults) {
  const ModelSpec qwen2 = parse(R"({"model_type": "qwen2"})");
  EXPECT_EQ(qwen2.vocabulary, 151936);
  EXPECT_EQ(qwen2.ffn, 22016);
  EXPECT_EQ(qwen2.kv_heads, 32);
  EXPECT_EQ(qwen2.max_positions, 32768);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_out_bias || qwen2.qk_norm);
  EXPECT_EQ(qwen2.sliding_window, 0);
  const ModelSpec qwen3 = parse(R"({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16,
      "num_key_value_heads": 8})");
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
}

TEST(Config, NullIsNotTheSameAsMissing) {
  // Missing means the family's default, null means "not used" (window) or "as many as heads".
  EXPECT_EQ(parse(R"({"model_type": "mistral", "sliding_window": null})").sliding_window, 0);
  EXPECT_EQ(parse(R"({"model_type": "mistral", "num_key_value_heads": null})").kv_heads, 32);
  EXPECT_EQ(parse(R"({"model_type": "llama", "num_key_value_heads": null})").kv_heads, 32);
  EXPECT_EQ(parse(R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_inner": null})").ffn, 256);
  EXPECT_EQ(parse(R"({"model_type": "llama", "head_dim": null, "rope_scaling": null})").head_dim, 128);
}

TEST(Config, ArchitectureAloneNamesTheFamilyInAnyCase) {
  EXPECT_EQ(parse(R"({"architectures": ["Qwen2ForCausalLM"]})").family, "qwen2");
  EXPECT_EQ(parse(R"({"architectures": ["LLaMAForCausalLM"], "model_type": "llama"})").family, "llama");
}

TEST(Config, Gpt2AcceptsTheCommonNamesOfItsSizes) {
  const ModelSpec model = parse(
      R"({"model_type": "gpt2", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
          "max_position_embeddings": 32, "n_inner": 100})");
  EXPECT_EQ(model.hidden, 96);
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.heads, 6);
  EXPECT_EQ(model.max_positions, 32);
  EXPECT_EQ(model.ffn, 100);
}

TEST(Config, ExplicitHeadDimNeedNotDivideTheHiddenSize) {
  const ModelSpec model =
      parse(R"({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3, "head_dim": 32})");
  EXPECT_EQ(model.head_dim, 32);
}

TEST(Config, RopeIsReadInBothSpellings) {
  const ModelSpec old_one = parse(R"({"model_type": "llama", "rope_theta": 5e5, "rope_scaling":
      {"type": "linear", "factor": 4}})");
  const ModelSpec new_one = parse(R"({"model_type": "llama", "rope_parameters":
      {"rope_theta": 500000.0, "rope_type": "linear", "factor": 4.0}})");
  for (const ModelSpec& model : {old_one, new_one}) {
    EXPECT_EQ(model.rope_theta, 5e5);
    EXPECT_EQ(model.rope_scaling, RopeScaling::linear);
    EXPECT_EQ(model.rope_factor, 4);
  }
  const ModelSpec plain =
      parse(R"({"model_type": "llama", "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})");
  EXPECT_EQ(plain.rope_theta, 1e6);
  EXPECT_EQ(plain.rope_scaling, RopeScaling::none);
}

TEST(Config, Llama3ScalingTakesItsFourNumbers) {
  const ModelSpec model = parse(R"({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
  EXPECT_EQ(model.rope_scaling, RopeScaling::llama3);
  EXPECT_EQ(model.rope_factor, 8);
  EXPECT_EQ(model.rope_low_frequency, 1);
  EXPECT_EQ(model.rope_high_frequency, 4);
  EXPECT_EQ(model.rope_original_positions, 8192);
}

TEST(Config, QwenWindowCountsOnlyIfEveryLayerHasIt) {
  const std::string head = R"({"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 64, )";
  EXPECT_EQ(parse(head + R"("use_sliding_window": false, "max_window_layers": 2})").sliding_window, 0);
  EXPECT_EQ(parse(head + R"("use_sliding_window": true, "max_window_layers": 4})").sliding_window, 0);
  EXPECT_EQ(parse(head + R"("use_sliding_window": true, "max_window_layers": 0})").sliding_window, 64);
  EXPECT_EQ(parse(head + R"("use_sliding_window": true, "layer_types": ["sliding_attention", "sliding_attention",
      "sliding_attention", "sliding_attention"]})")
                .sliding_window,
            64);
}

TEST(Config, BiasesFollowTheirKeys) {
  const ModelSpec llama = parse(R"({"model_type": "llama", "attention_bias": true, "mlp_bias": true})");
  EXPECT_TRUE(llama.qkv_bias && llama.attention_out_bias && llama.mlp_bias);
  const ModelSpec qwen3 = parse(R"({"model_type": "qwen3", "attention_bias": true})");
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.attention_out_bias);
}

void expect_same(const ModelSpec& a, const ModelSpec& b) {
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.ffn, b.ffn);
  EXPECT_EQ(a.vocabulary, b.vocabulary);
  EXPECT_EQ(a.max_positions, b.max_positions);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.norm_epsilon, b.norm_epsilon);
  EXPECT_EQ(a.activation, b.activation);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.attention_out_bias, b.attention_out_bias);
  EXPECT_EQ(a.mlp_bias, b.mlp_bias);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.rope_scaling, b.rope_scaling);
  EXPECT_EQ(a.rope_factor, b.rope_factor);
  EXPECT_EQ(a.rope_low_frequency, b.rope_low_frequency);
  EXPECT_EQ(a.rope_high_frequency, b.rope_high_frequency);
  EXPECT_EQ(a.rope_original_positions, b.rope_original_positions);
  EXPECT_EQ(a.rope_beta_fast, b.rope_beta_fast);
  EXPECT_EQ(a.rope_beta_slow, b.rope_beta_slow);
  EXPECT_EQ(a.rope_attention_factor, b.rope_attention_factor);
  EXPECT_EQ(a.rope_mscale, b.rope_mscale);
  EXPECT_EQ(a.rope_mscale_all_dim, b.rope_mscale_all_dim);
  EXPECT_EQ(a.latent, b.latent);
  EXPECT_EQ(a.moe, b.moe);
  EXPECT_EQ(a.attention_dropout, b.attention_dropout);
  EXPECT_EQ(a.residual_dropout, b.residual_dropout);
  EXPECT_EQ(a.embedding_dropout, b.embedding_dropout);
  EXPECT_EQ(a.init_standard_deviation, b.init_standard_deviation);
  EXPECT_EQ(a.scale_residual_init, b.scale_residual_init);
}

TEST(Config, WhatIsWrittenReadsBackTheSame) {
  std::vector<ModelSpec> models;
  for (const std::string& name : catalogue_model_names()) models.push_back(load_model(name));
  models.push_back(parse(R"({"model_type": "llama", "attention_bias": true, "mlp_bias": true, "attention_dropout": 0.25,
      "rope_scaling": {"type": "linear", "factor": 2.5}, "rms_norm_eps": 3e-7, "initializer_range": 0.013})"));
  models.push_back(parse(R"({"model_type": "mistral", "sliding_window": null, "head_dim": 96})"));
  models.push_back(parse(R"({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 0})"));
  models.push_back(parse(R"({"model_type": "gpt2", "n_inner": 1000, "resid_pdrop": 0, "embd_pdrop": 0.3,
      "attn_pdrop": 0.2, "tie_word_embeddings": false})"));
  models.push_back(parse(R"({"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 16,
      "beta_slow": 2, "attention_factor": 1.25, "original_max_position_embeddings": 512}})"));
  models.push_back(parse(R"({"model_type": "mixtral", "sliding_window": 64, "aux_loss_alpha": 0.5,
      "router_z_loss_coef": 0.25})"));
  models.push_back(parse(R"({"model_type": "qwen3_moe", "mlp_only_layers": [0, 1, 2], "attention_bias": true})"));
  models.push_back(parse(R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3,
      "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0, "n_shared_experts": null})"));
  models.push_back(parse(R"({"model_type": "deepseek_v3", "n_routed_experts": null, "q_lora_rank": null})"));
  for (const ModelSpec& model : models) {
    SCOPED_TRACE(model.name);
    const std::string text = write_model_config(model);
    expect_same(parse(text), model);
    EXPECT_EQ(write_model_config(parse(text)), text);
  }
}

TEST(Config, BothSpellingsAreWritten) {
  const std::string text = write_model_config(load_model("llama-3.1-405b"));
  for (const std::string key :
       {"rope_theta", "rope_scaling", "rope_parameters", "torch_dtype", "dtype", "LlamaForCausalLM"}) {
    EXPECT_NE(text.find("\"" + key + "\""), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace foresail
