// Every way to cut a layer computes what one rank computes: outputs, gradients of the input and of every logical weight.
#include <gtest/gtest.h>

#include "tests/program/lockstep.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::difference;
using testing::LayerKind;
using testing::LayerResult;
using testing::LayerRun;
using testing::run_layer;

constexpr double kTolerance = 1e-11;  // doubles, other orders of summation

struct ShardingCase {
  std::string name;
  Cut cut;
  std::string model;
  int64_t ffn = 48;
  bool unfused_attention = false;
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name
void PrintTo(const ShardingCase& test, std::ostream* out) { *out << test.name; }

Cut tensor(int64_t tp, bool sequence_parallel = false, int64_t kv_copies = 1) {
  Cut cut;
  cut.tp = tp;
  cut.sequence_parallel = sequence_parallel;
  cut.kv_copies = kv_copies;
  return cut;
}

Cut context(int64_t cp, ContextKind kind, Cut cut = {}) {
  cut.cp = cp;
  cut.context = kind;
  return cut;
}

std::vector<ShardingCase> all_cases() {
  const auto ring = ContextKind::ring, exchange = ContextKind::all_to_all;
  return {
      {"tp2", tensor(2), "llama"},
      {"tp2_qk_norm", tensor(2), "qwen3"},
      {"tp2_dropout", tensor(2), "gpt2"},
      {"tp2_sequence", tensor(2, true), "llama"},
      {"tp2_sequence_qk_norm", tensor(2, true), "qwen3"},
      {"tp4_sequence_dropout", tensor(4, true), "gpt2"},
      {"tp2_unfused", tensor(2, true), "gpt2", 48, true},
      {"tp2_padded_ffn", tensor(2), "llama", 45},
      {"tp4_padded_ffn", tensor(4, true), "gpt2", 5},
      {"tp4_copies", tensor(4, false, 2), "llama"},
      {"tp4_copies_sequence_qk_norm", tensor(4, true, 2), "qwen3", 45},
      {"tp4_copies_bias", tensor(4, true, 2), "qwen2"},
      {"cp2_ring", context(2, ring), "llama"},
      {"cp2_ring_dropout", context(2, ring), "gpt2"},
      {"cp4_ring_qk_norm", context(4, ring), "qwen3"},
      {"cp2_ring_window", context(2, ring), "mistral"},
      {"cp2_exchange", context(2, exchange), "llama"},
      {"cp4_exchange_dropout", context(4, exchange), "gpt2"},
      {"cp2_exchange_window", context(2, exchange), "mistral"},
      {"cp2_exchange_unfused", context(2, exchange), "gpt2", 48, true},
      {"tp2_cp2_ring_sequence", context(2, ring, tensor(2, true)), "qwen3"},
      {"tp2_cp2_ring_dropout", context(2, ring, tensor(2, true)), "gpt2"},
      {"tp4_copies_cp2_ring", context(2, ring, tensor(4, true, 2)), "llama"},
      {"tp2_cp2_exchange_dropout", context(2, exchange, tensor(2, true)), "gpt2"},
      {"tp2_cp2_exchange_unfused", context(2, exchange, tensor(2)), "gpt2", 48, true},
      {"tp2_latent", tensor(2), "latent"},
      {"tp4_latent_sequence", tensor(4, true), "latent"},
      {"tp2_latent_unfused", tensor(2, true), "yarn", 48, true},
      {"cp2_ring_latent", context(2, ring), "latent"},
      {"cp2_exchange_latent", context(2, exchange), "yarn"},
      {"cp4_exchange_latent_unfused", context(4, exchange), "latent", 48, true},
      {"tp2_cp2_ring_latent", context(2, ring, tensor(2, true)), "yarn"},
      {"tp2_cp2_exchange_latent", context(2, exchange, tensor(2, true)), "latent"},
  };
}

ModelSpec model_of(const ShardingCase& test) {
  ModelSpec model = test.model == "gpt2" ? testing::small_gpt2() : testing::small_llama();
  if (test.model == "qwen3") model = testing::small_qwen3();
  if (test.model == "latent" || test.model == "yarn") model = testing::small_model(test.model);
  if (test.model == "qwen2") model.qkv_bias = true;
  if (test.model == "mistral") model.sliding_window = 5;
  model.ffn = test.ffn;
  return model;
}

class Sharding : public ::testing::TestWithParam<ShardingCase> {
 protected:
  /// Every kind of layer, with operators one by one and fused.
  static void expect_equal(LayerKind kind) {
    for (const bool fused : {false, true}) {
      LayerRun run;
      run.model = model_of(GetParam());
      run.kind = kind;
      const LayerResult expected = run_layer(run);
      run.cut = GetParam().cut;
      run.fused = fused;
      run.unfused_attention = GetParam().unfused_attention;
      EXPECT_EQ(difference(expected, run_layer(run), kTolerance), "") << (fused ? "fused" : "one by one");
    }
  }
};

TEST_P(Sharding, EmbeddingEqualsOneRank) { expect_equal(LayerKind::embedding); }
TEST_P(Sharding, BlockEqualsOneRank) { expect_equal(LayerKind::block); }
TEST_P(Sharding, HeadEqualsOneRank) { expect_equal(LayerKind::head); }

INSTANTIATE_TEST_SUITE_P(Cuts, Sharding, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.name; });

/// The comparison sees what it must: one wrong element is named.
TEST(Lockstep, NamesWhatDiffers) {
  LayerRun run;
  run.model = testing::small_llama();
  const LayerResult expected = run_layer(run);
  EXPECT_EQ(expected.output.size(), 2u * 16 * 32);
  EXPECT_EQ(expected.gradients.size(), 9u);
  LayerResult wrong = expected;
  wrong.gradients.begin()->second[3] += 1e-6;
  EXPECT_NE(difference(expected, wrong, kTolerance).find(wrong.gradients.begin()->first), std::string::npos);
  wrong = expected;
  wrong.input_gradient[0] += 1e-6;
  EXPECT_NE(difference(expected, wrong, kTolerance).find("input gradient"), std::string::npos);
}

}  // namespace
}  // namespace foresail
