#include "refusal.h"

#include <random>

namespace foresail {
namespace {

TEST(Refusal, UnknownArchitectureIsNamedAndTheKnownAreListed) {
  expect_refused(R"({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})",
                 {"mamba", "model_type", "gpt2", "qwen3"});
  expect_refused(R"({"architectures": ["FalconForCausalLM"]})", {"FalconForCausalLM", "architectures", "llama"});
  expect_refused(R"({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]})",
                 {"LlamaForSequenceClassification", "architectures"});
  expect_refused(R"({"model_type": "dbrx"})", {"dbrx"});
  expect_refused(R"({"hidden_size": 64})", {"model_type", "missing"});
}

TEST(Refusal, TextThatIsNoConfig) {
  expect_refused("", {});
  expect_refused("[1, 2]", {"object"});
  expect_refused(R"({"model_type": "gpt2", "n_layer": 2)", {});
  expect_refused(R"({"model_type": "gpt2", "n_layer": 2, "n_layer": 3})", {"n_layer"});
  expect_refused(R"({"model_type": 7})", {"model_type"});
  expect_refused(R"({"model_type": "gpt2", "architectures": "GPT2LMHeadModel"})", {"architectures"});
  expect_refused(R"({"model_type": "gpt2", "architectures": [3]})", {"architectures"});
}

TEST(Refusal, SizesThatAreNegativeZeroOrAbsurd) {
  for (const std::string value :
       {"0", "-4096", "1e30", "99999999999", "18446744073709551615", "\"4096\"", "true", "3.5", "[8]", "{}"}) {
    for (const std::string key :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
      expect_refused("{\"model_type\": \"llama\", \"" + key + "\": " + value + "}", {"'" + key + "'"});
    }
    for (const std::string key : {"vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner"}) {
      expect_refused("{\"model_type\": \"gpt2\", \"" + key + "\": " + value + "}", {"'" + key + "'"});
    }
  }
}

TEST(Refusal, NumbersOutsideTheirRange) {
  expect_refused(R"({"model_type": "llama", "rms_norm_eps": 0})", {"rms_norm_eps"});
  expect_refused(R"({"model_type": "llama", "rms_norm_eps": -1e-5})", {"rms_norm_eps"});
  expect_refused(R"({"model_type": "llama", "rope_theta": 0})", {"rope_theta"});
  expect_refused(R"({"model_type": "llama", "rope_theta": "10000"})", {"rope_theta"});
  expect_refused(R"({"model_type": "llama", "attention_dropout": 1})", {"attention_dropout"});
  expect_refused(R"({"model_type": "llama", "attention_dropout": -0.1})", {"attention_dropout"});
  expect_refused(R"({"model_type": "gpt2", "resid_pdrop": 1.5})", {"resid_pdrop"});
  expect_refused(R"({"model_type": "gpt2", "embd_pdrop": 1.0})", {"embd_pdrop"});
  expect_refused(R"({"model_type": "gpt2", "attn_pdrop": "0.1"})", {"attn_pdrop"});
  expect_refused(R"({"model_type": "gpt2", "layer_norm_epsilon": 2})", {"layer_norm_epsilon"});
  expect_refused(R"({"model_type": "gpt2", "initializer_range": 0})", {"initializer_range"});
  expect_refused(R"({"model_type": "llama", "tie_word_embeddings": 1})", {"tie_word_embeddings"});
  expect_refused(R"({"model_type": "llama", "torch_dtype": 16})", {"torch_dtype"});
}

TEST(Refusal, HeadsThatDoNotFit) {
  expect_refused(R"({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3})",
                 {"hidden_size", "3", "head_dim"});
  expect_refused(R"({"model_type": "gpt2", "n_embd": 100, "n_head": 3})", {"n_embd", "n_head"});
  expect_refused(R"({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5})",
                 {"num_key_value_heads", "5", "32"});
  expect_refused(R"({"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 8})",
                 {"num_key_value_heads"});
  expect_refused(R"({"model_type": "mistral", "hidden_size": 4, "num_attention_heads": 2})", {"num_key_value_heads"});
  expect_refused(R"({"model_type": "llama", "head_dim": 33})", {"head_dim", "odd"});
  expect_refused(R"({"model_type": "llama", "num_attention_heads": 16384, "head_dim": 8192})", {"head_dim"});
}

TEST(Refusal, RopeScalingsThatAreNotThereAreNamed) {
  for (const std::string name : {"dynamic", "longrope", "su", "mrope"}) {
    expect_refused(R"({"model_type": "llama", "rope_scaling": {"type": ")" + name + R"(", "factor": 2}})",
                   {name, "rope_scaling.type"});
    expect_refused(R"({"model_type": "qwen2", "rope_parameters": {"rope_type": ")" + name + R"(", "factor": 2}})",
                   {name, "rope_parameters.rope_type"});
  }
  expect_refused(R"({"model_type": "llama", "rope_scaling": {"type": "linear"}})", {"rope_scaling.factor"});
  expect_refused(R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 0.5}})",
                 {"rope_scaling.factor"});
  expect_refused(R"({"model_type": "llama", "rope_scaling": "linear"})", {"rope_scaling"});
  expect_refused(R"({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4}})",
                 {"original_max_position_embeddings"});
  expect_refused(R"({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
                 {"high_freq_factor"});
  expect_refused(R"({"model_type": "llama", "partial_rotary_factor": 0.5})", {"partial_rotary_factor"});
}

TEST(Refusal, TwoSpellingsThatDisagree) {
  expect_refused(R"({"model_type": "gpt2", "n_embd": 64, "hidden_size": 128})", {"hidden_size", "n_embd"});
  expect_refused(R"({"model_type": "llama", "rope_theta": 10000, "rope_parameters": {"rope_theta": 5000}})",
                 {"rope_parameters"});
  expect_refused(R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2},
      "rope_parameters": {"rope_type": "linear", "factor": 4}})",
                 {"rope_parameters"});
  expect_refused(R"({"model_type": "llama", "rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}})",
                 {"type"});
}

TEST(Refusal, FeaturesThatAreNotThere) {
  expect_refused(R"({"model_type": "llama", "hidden_act": "relu"})", {"hidden_act", "relu"});
  expect_refused(R"({"model_type": "gpt2", "activation_function": "gelu"})", {"activation_function", "gelu"});
  expect_refused(R"({"model_type": "gpt2", "scale_attn_weights": false})", {"scale_attn_weights"});
  expect_refused(R"({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true})",
                 {"scale_attn_by_inverse_layer_idx"});
  expect_refused(R"({"model_type": "gpt2", "add_cross_attention": true})", {"add_cross_attention"});
  expect_refused(R"({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}})",
                 {"quantization_config"});
  expect_refused(R"({"model_type": "llama", "num_local_experts": 8})", {"num_local_experts", "experts"});
  expect_refused(R"({"model_type": "qwen3", "num_experts": 128})", {"num_experts"});
  expect_refused(R"({"model_type": "llama", "is_encoder_decoder": true})", {"is_encoder_decoder"});
  expect_refused(R"({"model_type": "qwen2", "use_mrope": true})", {"use_mrope"});
}

TEST(Refusal, LayersThatDifferInTheirWindow) {
  expect_refused(
      R"({"model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": true, "max_window_layers": 2})",
      {"max_window_layers", "2 of 4"});
  expect_refused(R"({"model_type": "qwen3", "num_hidden_layers": 2, "use_sliding_window": true,
      "layer_types": ["full_attention", "sliding_attention"]})",
                 {"layer_types", "1 of 2"});
  expect_refused(R"({"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": ["full_attention"]})",
                 {"layer_types"});
  expect_refused(R"({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["chunked"]})",
                 {"layer_types", "chunked"});
  expect_refused(R"({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]})",
                 {"layer_types"});
}

TEST(Refusal, MutatedConfigsAreReadOrRefusedButNeverCrash) {
  std::mt19937 random(20240601);
  for (const std::string& name : catalogue_model_names()) {
    const std::string whole = write_model_config(load_model(name));
    for (int i = 0; i < 100; ++i) {
      std::string text = whole;
      for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
        const size_t at = random() % text.size();
        switch (random() % 4) {
          case 0: text.erase(at, 1 + random() % 8); break;
          case 1: text[at] = static_cast<char>(random() % 256); break;
          case 2: text.insert(at, std::string(1, "0123456789-.eE\"[]{},:"[random() % 21])); break;
          default: text.resize(at + 1); break;
        }
        if (text.empty()) text = "{";
      }
      try {
        const ModelSpec model = parse_model_config(text, "mutated");
        GraphOptions options;
        options.sequence_length = 1;
        build_graphs(model, options);
        EXPECT_GT(parameter_count(model), 0);
      } catch (const Error& error) {
        EXPECT_EQ(error.exit(), Exit::bad_input) << error.what() << "\n" << text;
      }
    }
  }
}

}  // namespace
}  // namespace foresail
