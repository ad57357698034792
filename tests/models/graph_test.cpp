#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "models/model_spec.h"

namespace foresail {
namespace {

GraphOptions options_for(int64_t micro_batch, int64_t sequence_length) {
  GraphOptions options;
  options.micro_batch = micro_batch;
  options.sequence_length = sequence_length;
  return options;
}

ModelGraphs graphs_of(const std::string& name, int64_t sequence_length = 64) {
  return build_graphs(load_model(name), options_for(2, sequence_length));
}

std::vector<OpKind> kinds(const Graph& graph) {
  std::vector<OpKind> result;
  for (const Node& node : graph.nodes) result.push_back(node.kind);
  return result;
}

int count(const Graph& graph, OpKind kind) {
  const auto all = kinds(graph);
  return static_cast<int>(std::count(all.begin(), all.end(), kind));
}

const Node& node_of(const Graph& graph, OpKind kind) {
  const auto found =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) { return n.kind == kind; });
  if (found == graph.nodes.end()) throw std::runtime_error("no such node");
  return *found;
}

const Weight& weight_of(const Graph& graph, const std::string& name) {
  const auto found =
      std::find_if(graph.weights.begin(), graph.weights.end(), [&](const Weight& w) { return w.name == name; });
  if (found == graph.weights.end()) throw std::runtime_error("no weight " + name);
  return *found;
}

bool has_weight(const Graph& graph, const std::string& name) {
  return std::any_of(graph.weights.begin(), graph.weights.end(), [&](const Weight& w) { return w.name == name; });
}

std::vector<const Graph*> all(const ModelGraphs& graphs) {
  return {&graphs.embedding, &graphs.block, &graphs.expert_block, &graphs.head};
}

TEST(Graphs, LlamaBlockIsPreNormAttentionThenPreNormSwiglu) {
  const ModelGraphs graphs = graphs_of("llama-3-8b");
  using enum OpKind;
  EXPECT_EQ(kinds(graphs.block), (std::vector<OpKind>{rms_norm, linear, rope, attention, linear, add, rms_norm, linear,
                                                      swiglu, linear, add}));
  EXPECT_EQ(kinds(graphs.embedding), (std::vector<OpKind>{embedding}));
  EXPECT_EQ(kinds(graphs.head), (std::vector<OpKind>{rms_norm, linear, cross_entropy_stats, cross_entropy_loss}));
}

TEST(Graphs, Gpt2BlockHasBiasesAndDropoutsInTheirPlaces) {
  const ModelGraphs graphs = graphs_of("gpt2");
  using enum OpKind;
  EXPECT_EQ(kinds(graphs.block), (std::vector<OpKind>{layer_norm, linear, attention, linear, bias_add, dropout, add,
                                                      layer_norm, linear, gelu, linear, bias_add, dropout, add}));
  EXPECT_EQ(kinds(graphs.embedding), (std::vector<OpKind>{embedding, position_embedding, dropout}));
  EXPECT_EQ(node_of(graphs.block, attention).attributes.probability, 0.1);
}

TEST(Graphs, WithoutDropoutThereIsNoDropoutNode) {
  ModelSpec model = load_model("gpt2");
  model.attention_dropout = model.residual_dropout = model.embedding_dropout = 0;
  const ModelGraphs graphs = build_graphs(model, options_for(1, 16));
  for (const Graph* graph : all(graphs)) EXPECT_EQ(count(*graph, OpKind::dropout), 0);
  EXPECT_EQ(node_of(graphs.block, OpKind::attention).attributes.probability, 0);
}

TEST(Graphs, EveryDropoutOfABlockHasItsOwnRandomSite) {
  for (const bool unfused : {false, true}) {
    GraphOptions options = options_for(1, 16);
    options.unfused_attention = unfused;
    const ModelGraphs graphs = build_graphs(load_model("gpt2"), options);
    std::multiset<int> sites;
    for (const Node& node : graphs.block.nodes) {
      if (node.attributes.probability <= 0) continue;
      EXPECT_LT(node.attributes.random_site, 16);
      sites.insert(node.attributes.random_site);
    }
    EXPECT_EQ(sites, (std::multiset<int>{0, 1, 2}));
  }
}

TEST(Graphs, RopeIsOnlyWhereConfiguredAndCarriesItsScaling) {
  const ModelGraphs gpt2 = graphs_of("gpt2");
  for (const Graph* graph : all(gpt2)) EXPECT_EQ(count(*graph, OpKind::rope), 0);
  const Graph block = graphs_of("llama-3.2-1b").block;
  const OpAttributes& rope = node_of(block, OpKind::rope).attributes;
  EXPECT_EQ(rope.rope_theta, 5e5);
  EXPECT_EQ(rope.rope_scaling, RopeScaling::llama3);
  EXPECT_EQ(rope.rope_factor, 32);
  EXPECT_EQ(rope.rope_original_positions, 8192);
  const GraphTensor& table = block.tensors.at(block.find(TensorRole::constant));
  EXPECT_EQ(table.dtype, DType::f32);
  EXPECT_EQ(table.type().shape, (std::vector<int64_t>{64, 32, 2}));
}

TEST(Graphs, RowParallelBiasesComeAfterTheProduct) {
  const Graph block = graphs_of("gpt2").block;
  for (const Node& node : block.nodes) {
    if (node.kind != OpKind::linear) continue;
    const Weight& matrix = block.weights.at(block.tensors.at(node.inputs[1]).weight);
    const bool row_parallel = matrix.dims[0].name == DimName::hidden;
    EXPECT_EQ(node.inputs.size(), row_parallel ? 2u : 3u) << matrix.name;
  }
  EXPECT_EQ(count(block, OpKind::bias_add), 2);
}

TEST(Graphs, QwenBiasesAreOnQkvOnly) {
  const Graph block = graphs_of("qwen2.5-0.5b").block;
  EXPECT_EQ(weight_of(block, "qkv_bias").parts.size(), 3u);
  EXPECT_EQ(count(block, OpKind::bias_add), 0);
  for (const std::string name : {"attention_out_bias", "gate_up_bias", "down_bias"})
    EXPECT_FALSE(has_weight(block, name));
}

TEST(Graphs, Qwen3NormsHeadsBeforeRotatingThem) {
  const Graph block = graphs_of("qwen3-0.6b").block;
  const auto order = kinds(block);
  const auto norm = std::find(order.begin(), order.end(), OpKind::qk_norm);
  ASSERT_NE(norm, order.end());
  EXPECT_EQ(*(norm + 1), OpKind::rope);
  EXPECT_EQ(weight_of(block, "query_norm").dims, (std::vector<Dim>{{DimName::fixed, 128}}));
  EXPECT_EQ(weight_of(block, "attention_out").dims,
            (std::vector<Dim>{{DimName::hidden, 1024}, {DimName::attention, 2048}}));
}

TEST(Graphs, PackedPartsOfGroupedQueryAttentionFollowTheHeads) {
  const Weight qkv = weight_of(graphs_of("llama-3-8b").block, "qkv");
  ASSERT_EQ(qkv.parts.size(), 3u);
  EXPECT_EQ(qkv.dims, (std::vector<Dim>{{DimName::qkv, 6144}, {DimName::hidden, 4096}}));
  EXPECT_EQ(qkv.parts[0].tensor, "model.layers.{}.self_attn.q_proj.weight");
  EXPECT_EQ(qkv.parts[0].rows, 4096);
  EXPECT_EQ(qkv.parts[1].tensor, "model.layers.{}.self_attn.k_proj.weight");
  EXPECT_EQ(qkv.parts[1].rows, 1024);
  EXPECT_EQ(qkv.parts[2].tensor_rows, 1024);
  EXPECT_EQ(qkv.parts[2].first_row, 0);
}

TEST(Graphs, Gpt2PartsAreRowsOfOneTransposedTensor) {
  const Graph block = graphs_of("gpt2").block;
  const Weight qkv = weight_of(block, "qkv");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(qkv.parts[i].tensor, "transformer.h.{}.attn.c_attn.weight");
    EXPECT_EQ(qkv.parts[i].first_row, 768 * i);
    EXPECT_EQ(qkv.parts[i].tensor_rows, 3 * 768);
    EXPECT_TRUE(qkv.parts[i].transposed_in_file);
  }
  EXPECT_EQ(weight_of(block, "qkv_bias").parts[2].first_row, 2 * 768);
  EXPECT_FALSE(weight_of(block, "qkv_bias").parts[2].transposed_in_file);
  EXPECT_TRUE(weight_of(block, "down").parts[0].transposed_in_file);
  EXPECT_FALSE(weight_of(graphs_of("gpt2").embedding, "token_embedding").parts[0].transposed_in_file);
}

TEST(Graphs, PartsAddUpToTheRowsOfTheirWeightInEveryModel) {
  for (const std::string& name : catalogue_model_names()) {
    const ModelGraphs graphs = graphs_of(name);
    const ModelSpec model = load_model(name);
    for (const Graph* graph : all(graphs)) {
      if (graph == &graphs.block && is_expert_layer(model, 0)) continue;  // no layer is dense
      for (const Weight& weight : graph->weights) {
        int64_t rows = 0;
        for (const WeightPart& part : weight.parts) {
          rows += part.rows;
          EXPECT_LE(part.first_row + part.rows, part.tensor_rows) << name << " " << weight.name;
          const bool in_layer = graph == &graphs.block || graph == &graphs.expert_block;
          EXPECT_EQ(part.tensor.find("{}") != std::string::npos, in_layer)
              << name << " " << weight.name << " " << part.tensor;
        }
        const int64_t matrices = weight.dims.size() == 3 ? weight.dims[0].size : 1;
        EXPECT_EQ(rows, matrices * weight.dims.at(weight.dims.size() == 3 ? 1 : 0).size) << name << " " << weight.name;
      }
    }
  }
}

TEST(Graphs, TiedHeadNamesTheEmbeddingAndItsTensor) {
  const ModelGraphs tied = graphs_of("qwen3-0.6b");
  const Weight& head = weight_of(tied.head, "head");
  EXPECT_EQ(head.tied_to, "token_embedding");
  EXPECT_EQ(head.parts[0].tensor, weight_of(tied.embedding, head.tied_to).parts[0].tensor);
  const ModelGraphs untied = graphs_of("llama-3-8b");
  EXPECT_EQ(weight_of(untied.head, "head").tied_to, "");
  EXPECT_EQ(weight_of(untied.head, "head").parts[0].tensor, "lm_head.weight");
}

TEST(Graphs, DecaySparesNormsAndBiasesOnly) {
  for (const std::string name : {"gpt2", "qwen3-0.6b", "qwen2.5-7b"}) {
    const ModelGraphs graphs = graphs_of(name);
    for (const Graph* graph : all(graphs)) {
      for (const Weight& weight : graph->weights) EXPECT_EQ(weight.decay, weight.dims.size() == 2) << weight.name;
    }
  }
}

TEST(Graphs, InitialisationFollowsTheFamily) {
  const Graph gpt2 = graphs_of("gpt2").block;
  EXPECT_EQ(weight_of(gpt2, "qkv").init.standard_deviation, 0.02);
  EXPECT_DOUBLE_EQ(weight_of(gpt2, "down").init.standard_deviation, 0.02 / std::sqrt(24.0));
  EXPECT_DOUBLE_EQ(weight_of(gpt2, "attention_out").init.standard_deviation, 0.02 / std::sqrt(24.0));
  EXPECT_EQ(weight_of(gpt2, "qkv_bias").init.kind, InitKind::zeros);
  EXPECT_EQ(weight_of(gpt2, "norm_1").init.kind, InitKind::ones);
  EXPECT_EQ(weight_of(gpt2, "norm_1_bias").init.kind, InitKind::zeros);
  EXPECT_EQ(weight_of(graphs_of("llama-3-8b").block, "down").init.standard_deviation, 0.02);
}

TEST(Graphs, LatentAttentionMakesPackedRowsFromItsLatents) {
  using enum OpKind;
  const ModelGraphs lite = graphs_of("deepseek-v2-lite");
  EXPECT_EQ(kinds(lite.block), (std::vector<OpKind>{rms_norm, linear, linear, rms_norm, linear, linear, latent_join,
                                                    attention, linear, add, rms_norm, linear, swiglu, linear, add}));
  const ModelGraphs v3 = graphs_of("deepseek-v3");
  EXPECT_EQ(count(v3.block, rms_norm), 4);  // queries have a latent of their own
  for (const Graph* graph : {&lite.block, &lite.expert_block, &v3.block, &v3.expert_block}) {
    const OpAttributes& a = node_of(*graph, attention).attributes;
    EXPECT_EQ(a.head_dim, 192);
    EXPECT_EQ(a.value_dim, 128);
    EXPECT_EQ(weight_of(*graph, "attention_out").dims.at(1).size, a.heads * 128);
    const auto& parts = weight_of(*graph, "k_rope").parts;
    EXPECT_EQ(parts.at(0).tensor, weight_of(*graph, "kv_latent").parts.at(0).tensor);
    EXPECT_EQ(parts.at(0).first_row, 512);
    EXPECT_EQ(parts.at(0).tensor_rows, 576);
    for (const Node& node : graph->nodes) {
      if (node.kind == rms_norm && graph->tensors.at(node.outputs[0]).name.find("latent") != std::string::npos) {
        EXPECT_EQ(node.attributes.epsilon, 1e-6);
      }
    }
  }
}

TEST(Graphs, LatentAttentionIsSharperByBothMagnitudesOfYarn) {
  // Computed in Python from the published modelling code's formulas.
  const OpAttributes lite = node_of(graphs_of("deepseek-v2-lite").block, OpKind::attention).attributes;
  EXPECT_NEAR(lite.scale, 0.11472138679292611, 1e-15);
  EXPECT_NEAR(node_of(graphs_of("deepseek-v3").block, OpKind::attention).attributes.scale, 0.1352337788608801, 1e-15);
  EXPECT_EQ(node_of(graphs_of("deepseek-v2-lite").block, OpKind::latent_join).attributes.rope_magnitude, 1);
  ModelSpec model = load_model("qwen2.5-0.5b");
  model.rope_scaling = RopeScaling::yarn;
  model.rope_factor = 4;
  model.rope_original_positions = 32768;
  const Graph block = build_graphs(model, options_for(1, 16)).block;
  EXPECT_NEAR(node_of(block, OpKind::rope).attributes.rope_magnitude, 1.138629436111989, 1e-15);
  EXPECT_EQ(node_of(block, OpKind::attention).attributes.scale, 0.125);
}

TEST(Graphs, WindowCountsOnlyWhereTheSequenceIsLonger) {
  EXPECT_EQ(node_of(graphs_of("mistral-7b", 4096).block, OpKind::attention).attributes.window, 0);
  EXPECT_EQ(node_of(graphs_of("mistral-7b", 8192).block, OpKind::attention).attributes.window, 4096);
}

TEST(Graphs, AttentionCarriesItsSizesAndScale) {
  const OpAttributes attributes = node_of(graphs_of("llama-3-8b").block, OpKind::attention).attributes;
  EXPECT_EQ(attributes.sequence_length, 64);
  EXPECT_EQ(attributes.heads, 32);
  EXPECT_EQ(attributes.kv_heads, 8);
  EXPECT_EQ(attributes.head_dim, 128);
  EXPECT_DOUBLE_EQ(attributes.scale, 1 / std::sqrt(128.0));
}

TEST(Graphs, UnfusedAttentionStoresScores) {
  GraphOptions options = options_for(2, 16);
  options.unfused_attention = true;
  const Graph block = build_graphs(load_model("gpt2"), options).block;
  EXPECT_EQ(count(block, OpKind::attention), 0);
  const Node& scores = node_of(block, OpKind::attention_scores);
  EXPECT_EQ(block.tensors.at(scores.outputs[0]).type().shape, (std::vector<int64_t>{2, 12, 16, 16}));
  const auto order = kinds(block);
  const auto softmax = std::find(order.begin(), order.end(), OpKind::attention_softmax);
  EXPECT_EQ(*(softmax + 1), OpKind::dropout);
  EXPECT_EQ(*(softmax + 2), OpKind::attention_context);
}

TEST(Graphs, TensorsHaveTheRolesThatCompilationLooksFor) {
  const ModelGraphs graphs = graphs_of("gpt2");
  EXPECT_GE(graphs.embedding.find(TensorRole::tokens), 0);
  EXPECT_GE(graphs.embedding.find(TensorRole::layer_output), 0);
  EXPECT_GE(graphs.block.find(TensorRole::layer_input), 0);
  EXPECT_GE(graphs.block.find(TensorRole::layer_output), 0);
  EXPECT_GE(graphs.head.find(TensorRole::layer_input), 0);
  EXPECT_GE(graphs.head.find(TensorRole::targets), 0);
  EXPECT_EQ(graphs.head.tensors.at(graphs.head.find(TensorRole::loss)).dtype, DType::f64);
  const auto& tensors = graphs.head.tensors;
  const auto logits =
      std::find_if(tensors.begin(), tensors.end(), [](const GraphTensor& t) { return t.name == "logits"; });
  ASSERT_NE(logits, tensors.end());
  EXPECT_EQ(logits->type().shape, (std::vector<int64_t>{128, 50257}));
  EXPECT_EQ(graphs.block.tensors.at(graphs.block.find(TensorRole::layer_output)).dims,
            graphs.block.tensors.at(graphs.block.find(TensorRole::layer_input)).dims);
}

TEST(Graphs, NamesOfTensorsAreUniqueWithinALayer) {
  for (const std::string& name : catalogue_model_names()) {
    for (const bool unfused : {false, true}) {
      GraphOptions options = options_for(1, 8);
      options.unfused_attention = unfused;
      const ModelGraphs graphs = build_graphs(load_model(name), options);
      for (const Graph* graph : all(graphs)) {
        std::set<std::string> activations, weights;
        for (const GraphTensor& tensor : graph->tensors) {
          auto& seen = tensor.role == TensorRole::weight ? weights : activations;
          EXPECT_TRUE(seen.insert(tensor.name).second) << name << " " << tensor.name;
        }
      }
    }
  }
}

TEST(Graphs, EveryNodeReadsOnlyWhatExistsBeforeIt) {
  for (const std::string& name : catalogue_model_names()) {
    const ModelGraphs graphs = graphs_of(name);
    for (const Graph* graph : all(graphs)) {
      std::set<int> written;
      for (const Node& node : graph->nodes) written.insert(node.outputs.begin(), node.outputs.end());
      std::set<int> done;
      for (const Node& node : graph->nodes) {
        for (const int input : node.inputs) EXPECT_TRUE(!written.contains(input) || done.contains(input)) << name;
        done.insert(node.outputs.begin(), node.outputs.end());
      }
    }
  }
}

TEST(Graphs, ContextParallelRanksHoldTheirShareOfEveryRow) {
  GraphOptions options = options_for(2, 64);
  options.context_parallel = 4;
  for (const std::string name : {"gpt2", "qwen3-0.6b"}) {
    const ModelGraphs graphs = build_graphs(load_model(name), options);
    for (const Graph* graph : all(graphs)) {
      for (const GraphTensor& tensor : graph->tensors) {
        if (!tensor.dims.empty() && tensor.dims[0].name == DimName::tokens) EXPECT_EQ(tensor.dims[0].size, 2 * 16);
      }
      for (const Node& node : graph->nodes) {
        using enum OpKind;
        const bool knows_positions = node.kind == rope || node.kind == position_embedding || node.kind == dropout ||
                                     node.kind == attention || node.kind == qk_norm;
        EXPECT_EQ(node.attributes.sequence_length, knows_positions ? 16 : 0) << name_of(node.kind);
        EXPECT_EQ(node.attributes.context_parallel, knows_positions ? 4 : 1) << name_of(node.kind);
      }
    }
  }
  const Graph block = build_graphs(load_model("llama-3.2-1b"), options).block;
  EXPECT_EQ(block.tensors.at(block.find(TensorRole::constant)).dims[0].size, 64) << "the table of whole sequences";
}

TEST(Graphs, WindowIsComparedWithWholeSequences) {
  GraphOptions options = options_for(1, 8192);
  options.context_parallel = 4;
  EXPECT_EQ(node_of(build_graphs(load_model("mistral-7b"), options).block, OpKind::attention).attributes.window, 4096);
}

TEST(Graphs, SequencesThatContextRanksCannotShareAreRefused) {
  GraphOptions options = options_for(1, 36);
  options.context_parallel = 2;
  EXPECT_NO_THROW(build_graphs(load_model("gpt2"), options));
  options.context_parallel = 4;
  EXPECT_THROW(build_graphs(load_model("gpt2"), options), Error);
  options.context_parallel = 0;
  EXPECT_THROW(build_graphs(load_model("gpt2"), options), Error);
}

TEST(Graphs, CopiedKvHeadsHaveAProductOfTheirOwn) {
  GraphOptions options = options_for(2, 64);
  options.kv_copies = 2;
  const Graph block = build_graphs(load_model("qwen2.5-7b"), options).block;
  EXPECT_FALSE(has_weight(block, "qkv"));
  const Weight& q = weight_of(block, "q");
  const Weight& kv = weight_of(block, "kv");
  EXPECT_EQ(q.dims, (std::vector<Dim>{{DimName::attention, 3584}, {DimName::hidden, 3584}}));
  EXPECT_EQ(kv.dims, (std::vector<Dim>{{DimName::kv, 2 * 512}, {DimName::hidden, 3584}}));
  ASSERT_EQ(q.parts.size(), 1u);
  EXPECT_EQ(q.parts[0].tensor, "model.layers.{}.self_attn.q_proj.weight");
  ASSERT_EQ(kv.parts.size(), 2u);
  EXPECT_EQ(kv.parts[0].tensor, "model.layers.{}.self_attn.k_proj.weight");
  EXPECT_EQ(kv.parts[1].tensor, "model.layers.{}.self_attn.v_proj.weight");
  EXPECT_EQ(weight_of(block, "q_bias").parts[0].tensor, "model.layers.{}.self_attn.q_proj.bias");
  EXPECT_EQ(weight_of(block, "kv_bias").parts[1].tensor, "model.layers.{}.self_attn.v_proj.bias");
  const auto order = kinds(block);
  const auto join = std::find(order.begin(), order.end(), OpKind::join_qkv);
  ASSERT_NE(join, order.end());
  EXPECT_EQ(*(join + 1), OpKind::rope);
  const Graph normed = build_graphs(load_model("qwen3-0.6b"), options).block;
  const auto all_kinds = kinds(normed);
  EXPECT_EQ(*(std::find(all_kinds.begin(), all_kinds.end(), OpKind::join_qkv) + 1), OpKind::qk_norm);
}

TEST(Graphs, PartsOfAJointTensorKeepTheirRowsWhenTheyAreApart) {
  GraphOptions options = options_for(1, 16);
  options.kv_copies = 2;
  const Graph block = build_graphs(load_model("gpt2"), options).block;
  EXPECT_EQ(weight_of(block, "q").parts[0].first_row, 0);
  const Weight& kv = weight_of(block, "kv");
  EXPECT_EQ(kv.parts[0].first_row, 768);
  EXPECT_EQ(kv.parts[1].first_row, 2 * 768);
  EXPECT_EQ(kv.parts[1].tensor_rows, 3 * 768);
}

TEST(Graphs, SequencesBeyondLearnedPositionsAreRefused) {
  EXPECT_NO_THROW(graphs_of("gpt2", 1024));
  try {
    graphs_of("gpt2", 1025);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("1024"), std::string::npos);
  }
  EXPECT_NO_THROW(graphs_of("llama-2-7b", 8192));  // rotary positions have no table to run out of
}

TEST(Graphs, ImpossibleSizesAreRefused) {
  for (const auto& [batch, length] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 8}, {1, 0}, {-1, 8}, {1, -8}, {int64_t{1} << 40, 1}, {int64_t{1} << 20, int64_t{1} << 20}}) {
    EXPECT_THROW(build_graphs(load_model("llama-3-8b"), options_for(batch, length)), Error) << batch << " " << length;
  }
}

}  // namespace
}  // namespace foresail
