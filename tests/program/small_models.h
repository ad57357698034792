// Tiny architectures that cover every switch of ModelSpec, and jobs for them.
#pragma once

#include <string>
#include <vector>

#include "models/model_spec.h"
#include "program/compile.h"
#include "program/program.h"

namespace foresail::testing {

ModelSpec small_llama();  ///< 4 layers, GQA 4/2, untied
ModelSpec small_gpt2();   ///< 4 layers, biases, learned positions, tied, dropout
ModelSpec small_qwen3();  ///< 4 layers, q/k norm, head_dim != hidden / heads, tied
ModelSpec
small_uneven();          ///< 6 layers, 6 heads on one KV head, odd FFN and vocabulary: copies and padding for every tp
ModelSpec small_deep();  ///< 8 thin layers like GPT-2's, for many virtual stages
ModelSpec small_latent();   ///< latent attention with a latent of the queries, values narrower than keys
ModelSpec small_yarn();     ///< latent attention without one, values wider than keys, YaRN with both of its magnitudes
ModelSpec small_mixtral();  ///< experts in every layer: 2 of 8, odd width, balance and z loss
ModelSpec small_qwen3_moe();  ///< a dense layer, then 2 of 4 experts by sigmoid scores, balance loss alone
ModelSpec small_deepseek();   ///< latent attention; a dense layer, then 2 of 8 experts in groups beside shared ones
/// By short name: "llama", "gpt2", "qwen3", "uneven", "deep", "latent", "yarn", "mixtral", "qwen3_moe", "deepseek".
ModelSpec small_model(const std::string& name);

Job small_job(int64_t global_batch = 8, int64_t sequence_length = 16);

/// Programs of every stage.
std::vector<Program> train_programs(const ModelSpec& model, const Job& job, const std::string& strategy,
                                    const Target& target = {});

}  // namespace foresail::testing
