// What a choice of dropped tensors keeps and replays.
#include "program/recompute.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "tests/program/recompute_blocks.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::names_of;
using testing::parallel_blocks;
using testing::real_blocks;
using testing::replay_fault;
using testing::small_gpt2;
using testing::small_llama;
using testing::tensor_named;
using testing::trained_block;
using Names = std::vector<std::string>;

/// A layer written by hand: tensors by name, `x` is its input.
class Sketch {
 public:
  Sketch() { tensor("x", TensorRole::layer_input); }

  Sketch& op(OpKind kind, const Names& inputs, const Names& outputs) {
    return node(kind, NodeCollective::none, inputs, outputs);
  }
  Sketch& move(NodeCollective collective, const std::string& input, const std::string& output) {
    return node(OpKind::copy, collective, {input}, {output});
  }
  Differentiated saving(const Names& names) {
    for (const std::string& name : names) layer_.saved.insert(tensor_named(layer_, name));
    return layer_;
  }

 private:
  int tensor(const std::string& name, TensorRole role) {
    GraphTensor tensor;
    tensor.name = name;
    tensor.role = role;
    layer_.graph.tensors.push_back(tensor);
    return static_cast<int>(layer_.graph.tensors.size()) - 1;
  }
  Sketch& node(OpKind kind, NodeCollective collective, const Names& inputs, const Names& outputs) {
    Node node;
    node.kind = kind;
    node.collective = collective;
    for (const std::string& input : inputs) node.inputs.push_back(tensor_named(layer_, input));
    for (const std::string& output : outputs) node.outputs.push_back(tensor(output, TensorRole::activation));
    layer_.graph.nodes.push_back(node);
    ++layer_.forward_nodes;
    return *this;
  }
  Differentiated layer_;
};

/// Replayed nodes by their first output.
Names replayed(const Differentiated& layer, const ReplayPlan& plan) {
  Names names;
  for (const int n : plan.replayed) {
    names.push_back(
        layer.graph.tensors[static_cast<size_t>(layer.graph.nodes[static_cast<size_t>(n)].outputs[0])].name);
  }
  return names;
}

struct Outcome {
  Names kept, replayed;
  bool operator==(const Outcome&) const = default;
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name
void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << fmt::format("kept {} replayed {}", fmt::join(outcome.kept, " "), fmt::join(outcome.replayed, " "));
}

Outcome outcome(const Differentiated& layer, Recompute preset, const Names& tensors = {}) {
  const ReplayPlan plan = replay_plan(layer, dropped_tensors(layer, preset, tensors));
  EXPECT_EQ(replay_fault(layer, plan), "");
  return {names_of(layer, plan.kept), replayed(layer, plan)};
}

std::string refusal(const Differentiated& layer, const Names& tensors) {
  try {
    dropped_tensors(layer, Recompute::none, tensors);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST(Recompute, NoneKeepsWhatBackwardReadsAndReplaysNothing) {
  for (const auto& [name, layer] : real_blocks()) {
    const ReplayPlan plan = replay_plan(layer, dropped_tensors(layer, Recompute::none, {}));
    EXPECT_EQ(plan.kept, layer.saved) << name;
    EXPECT_TRUE(plan.replayed.empty()) << name;
  }
}

TEST(Recompute, FullKeepsNothingBesideTheInput) {
  for (const auto& [name, layer] : real_blocks()) {
    const ReplayPlan plan = replay_plan(layer, dropped_tensors(layer, Recompute::full, {}));
    EXPECT_TRUE(plan.kept.empty()) << name;
    EXPECT_EQ(replay_fault(layer, plan), "") << name;
  }
  const Differentiated llama = trained_block(small_llama(), 16, false, false);
  EXPECT_EQ(static_cast<int>(replay_plan(llama, droppable_tensors(llama)).replayed.size()), llama.forward_nodes - 2)
      << "all but the last product and sum";
}

TEST(Recompute, SelectiveKeepsProductsAndAttentionAndReplaysTheRest) {
  EXPECT_EQ(outcome(trained_block(small_llama(), 16, false, false), Recompute::selective),
            (Outcome{{"attended", "attended.lse", "attention_out", "gate_up", "qkv"},
                     {"normed_1", "qkv.rotated", "attention_out.sum", "normed_2", "activated"}}));
  EXPECT_EQ(outcome(trained_block(small_llama(), 16, true, false), Recompute::selective),
            (Outcome{{"attended", "attended.lse", "attention_out", "gate_up", "qkv"},
                     {"normed_1", "qkv.rotated", "attention_out.sum", "activated"}}));
  EXPECT_EQ(outcome(trained_block(small_gpt2(), 16, false, false), Recompute::selective),
            (Outcome{{"attended", "attended.lse", "attention_out", "qkv", "up"},
                     {"normed_1", "attention_out.biased", "attention_out.dropped", "attention_out.sum", "normed_2",
                      "activated"}}));
}

TEST(Recompute, SelectiveDropsScoresAndSoftmaxOfUnfusedAttention) {
  EXPECT_EQ(outcome(trained_block(small_gpt2(), 16, true, true), Recompute::selective),
            (Outcome{{"attended", "attention_out", "qkv", "up"},
                     {"normed_1", "scores", "probabilities", "probabilities.dropped", "attention_out.biased",
                      "attention_out.dropped", "attention_out.sum", "activated"}}));
}

TEST(Recompute, SelectiveRunsNoProductAttentionOrSumAgain) {
  for (const auto& [name, layer] : real_blocks()) {
    for (const int n : replay_plan(layer, dropped_tensors(layer, Recompute::selective, {})).replayed) {
      const Node& node = layer.graph.nodes[static_cast<size_t>(n)];
      EXPECT_EQ(node.collective, NodeCollective::none) << name;
      EXPECT_NE(node.kind, OpKind::linear) << name;
      EXPECT_NE(node.kind, OpKind::attention) << name;
      EXPECT_NE(node.kind, OpKind::attention_context) << name;
    }
  }
}

TEST(Recompute, SelectiveKeepsTheReducedSumsOfTensorParallelism) {
  const Differentiated layer = trained_block(small_llama(), 16, true, false, {2});
  const ReplayPlan plan = replay_plan(layer, dropped_tensors(layer, Recompute::selective, {}));
  int sums = 0;
  for (int n = 0; n < layer.forward_nodes; ++n) {
    const Node& node = layer.graph.nodes[static_cast<size_t>(n)];
    if (node.collective == NodeCollective::all_reduce_tensor)
      sums += static_cast<int>(plan.kept.count(node.outputs[0]));
  }
  EXPECT_EQ(sums, 1) << "of attention; nobody reads the block's last sum again";
}

TEST(Recompute, OneDroppedTensorReplaysOnlyWhatItNeeds) {
  const Differentiated layer = trained_block(small_llama(), 16, false, false);
  EXPECT_EQ(outcome(layer, Recompute::none, {"activated"}).replayed, Names{"activated"});
  EXPECT_EQ(outcome(layer, Recompute::none, {"attended"}).replayed, Names{"attended"});
  const Outcome both = outcome(layer, Recompute::none, {"gate_up", "activated"});
  EXPECT_EQ(both.replayed, (Names{"gate_up", "activated"}));
  EXPECT_EQ(std::count(both.kept.begin(), both.kept.end(), "normed_2"), 1);
}

TEST(Recompute, StatisticsAreNotKeptWhereTheirNodeIsReplayed) {
  const Differentiated layer = trained_block(small_llama(), 16, false, false);
  const Outcome normed = outcome(layer, Recompute::none, {"normed_1"});
  EXPECT_EQ(std::count(normed.kept.begin(), normed.kept.end(), "normed_1.rstd"), 0);
  EXPECT_EQ(std::count(normed.kept.begin(), normed.kept.end(), "normed_2.rstd"), 1);
}

/// The first half of a block under sequence parallelism.
Differentiated sequence_parallel() {
  return Sketch()
      .op(OpKind::rms_norm, {"x"}, {"normed", "rstd"})
      .move(NodeCollective::all_gather_rows, "normed", "normed.gathered")
      .op(OpKind::linear, {"normed.gathered"}, {"qkv"})
      .op(OpKind::attention, {"qkv"}, {"attended", "lse"})
      .op(OpKind::linear, {"attended"}, {"out"})
      .move(NodeCollective::reduce_scatter_rows, "out", "out.scattered")
      .op(OpKind::add, {"out.scattered", "x"}, {"sum"})
      .op(OpKind::rms_norm, {"sum"}, {"normed_2", "rstd_2"})
      .saving({"rstd", "normed.gathered", "qkv", "attended", "lse", "sum", "rstd_2"});
}

TEST(Recompute, GatheredRowsAreNeverKeptTheirSharesAre) {
  const Differentiated layer = sequence_parallel();
  EXPECT_EQ(outcome(layer, Recompute::none),
            (Outcome{{"attended", "lse", "normed", "qkv", "rstd", "rstd_2", "sum"}, {"normed.gathered"}}));
  EXPECT_EQ(outcome(layer, Recompute::none, {"normed"}),
            (Outcome{{"attended", "lse", "qkv", "rstd_2", "sum"}, {"normed", "normed.gathered"}}));
  EXPECT_EQ(outcome(layer, Recompute::selective),
            (Outcome{{"attended", "lse", "out.scattered", "qkv"}, {"normed", "normed.gathered", "sum", "normed_2"}}));
  EXPECT_EQ(droppable_tensors(layer).count(tensor_named(layer, "normed.gathered")), 0u);
  EXPECT_NE(refusal(layer, {"normed.gathered"}).find("no tensor that is kept"), std::string::npos);
}

TEST(Recompute, GatheredInputOfTheLayerNeedsNothingKept) {
  const Differentiated layer =
      Sketch().move(NodeCollective::all_gather_rows, "x", "rows").op(OpKind::linear, {"rows"}, {"y"}).saving({"rows"});
  EXPECT_EQ(outcome(layer, Recompute::none), (Outcome{{}, {"rows"}}));
}

TEST(Recompute, ParallelBlocksKeepOneShareOfEachGatheredTensor) {
  for (const auto& [name, layer] : parallel_blocks()) {
    const ReplayPlan none = replay_plan(layer, {});
    EXPECT_EQ(replay_fault(layer, none), "") << name;
    for (const int n : none.replayed) {
      EXPECT_EQ(layer.graph.nodes[static_cast<size_t>(n)].collective, NodeCollective::all_gather_rows) << name;
    }
    const bool gathers = name.find("sequence parallelism") != std::string::npos;
    EXPECT_EQ(none.replayed.size(), gathers ? 2u : 0u) << name << ": before qkv and before the MLP";
    EXPECT_TRUE(replay_plan(layer, droppable_tensors(layer)).kept.empty()) << name;
    for (const int n : replay_plan(layer, dropped_tensors(layer, Recompute::selective, {})).replayed) {
      const Node& node = layer.graph.nodes[static_cast<size_t>(n)];
      const bool gather = node.collective == NodeCollective::all_gather_rows;
      EXPECT_TRUE(gather || node.collective == NodeCollective::none) << name;
      EXPECT_TRUE(gather || (node.kind != OpKind::linear && node.kind != OpKind::attention &&
                             node.kind != OpKind::ring_attention))
          << name;
    }
  }
}

/// Ring attention of two context ranks.
Differentiated ring(bool rotated) {
  Sketch sketch;
  sketch.op(OpKind::linear, {"x"}, {"qkv"});
  if (rotated) sketch.op(OpKind::rope, {"qkv"}, {"qkv.rotated"});
  return sketch.op(OpKind::split_qkv, {rotated ? "qkv.rotated" : "qkv"}, {"q", "kv"})
      .op(OpKind::ring_attention, {"q", "kv"}, {"o.0", "lse.0"})
      .move(NodeCollective::ring_shift_context, "kv", "kv.1")
      .op(OpKind::ring_attention, {"q", "kv.1", "o.0", "lse.0"}, {"o", "lse"})
      .saving({"q", "kv", "kv.1", "o", "lse"});
}

TEST(Recompute, ShiftedKeysAreNeverKept) {
  EXPECT_EQ(outcome(ring(true), Recompute::none), (Outcome{{"kv", "lse", "o", "q"}, {"kv.1"}}));
  EXPECT_EQ(outcome(ring(true), Recompute::selective), (Outcome{{"lse", "o", "qkv"}, {"qkv.rotated", "q", "kv.1"}}));
  EXPECT_EQ(outcome(ring(false), Recompute::selective), (Outcome{{"kv", "lse", "o", "q"}, {"kv.1"}}))
      << "rearranging a product's result is no reason to keep it in its old order";
  EXPECT_EQ(outcome(ring(true), Recompute::full), (Outcome{{}, {"qkv", "qkv.rotated", "q", "o.0", "kv.1", "o"}}));
}

TEST(Recompute, ExchangedHeadsAreKeptAsAttentionReadsThem) {
  const Differentiated layer = Sketch()
                                   .op(OpKind::linear, {"x"}, {"qkv"})
                                   .op(OpKind::rope, {"qkv"}, {"qkv.rotated"})
                                   .op(OpKind::heads_split, {"qkv.rotated"}, {"parts"})
                                   .move(NodeCollective::all_to_all_context, "parts", "received")
                                   .op(OpKind::rows_merge, {"received"}, {"merged"})
                                   .op(OpKind::attention, {"merged"}, {"o", "lse"})
                                   .saving({"merged", "o", "lse"});
  for (const Recompute preset : {Recompute::none, Recompute::selective}) {
    EXPECT_EQ(outcome(layer, preset), (Outcome{{"lse", "merged", "o"}, {}}));
  }
  EXPECT_EQ(outcome(layer, Recompute::none, {"merged", "received"}),
            (Outcome{{"lse", "o", "parts"}, {"received", "merged"}}));
}

TEST(Recompute, RearrangedDataIsNotKeptBesideItsSource) {
  const Differentiated layer = Sketch()
                                   .op(OpKind::linear, {"x"}, {"qkv"})
                                   .op(OpKind::split_qkv, {"qkv"}, {"q", "kv"})
                                   .saving({"qkv", "q", "kv"});
  EXPECT_EQ(outcome(layer, Recompute::none), (Outcome{{"qkv"}, {"q"}}));
}

/// Leaving out any kept tensor or replayed node must be noticed.
void expect_minimal(const Differentiated& layer, const ReplayPlan& plan, const std::string& what) {
  for (const int tensor : plan.kept) {
    ReplayPlan less = plan;
    less.kept.erase(tensor);
    EXPECT_NE(replay_fault(layer, less), "") << what << ": kept " << tensor;
  }
  for (size_t i = 0; i < plan.replayed.size(); ++i) {
    ReplayPlan less = plan;
    less.replayed.erase(less.replayed.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(replay_fault(layer, less), "") << what << ": node " << plan.replayed[i];
  }
}

void expect_choices_work(const Differentiated& layer, std::mt19937& random, const std::string& what) {
  const std::set<int> droppable = droppable_tensors(layer);
  for (int round = 0; round < 20; ++round) {
    std::set<int> choice;
    for (const int tensor : droppable) {
      if (random() % 2 == 0) choice.insert(tensor);
    }
    const ReplayPlan plan = replay_plan(layer, choice);
    ASSERT_EQ(replay_fault(layer, plan), "") << what;
    expect_minimal(layer, plan, what);
    for (const int tensor : choice) EXPECT_EQ(plan.kept.count(tensor), 0u) << what;
    const std::set<int> effective = effective_drops(layer, choice);
    EXPECT_TRUE(std::includes(choice.begin(), choice.end(), effective.begin(), effective.end())) << what;
    const ReplayPlan same = replay_plan(layer, effective);
    EXPECT_EQ(same.kept, plan.kept) << what;
    EXPECT_EQ(same.replayed, plan.replayed) << what;
  }
}

TEST(Recompute, AnyChoiceSufficesAndReplaysAndKeepsNothingInVain) {
  std::mt19937 random(20261130);
  for (const auto& [name, layer] : real_blocks()) expect_choices_work(layer, random, name);
  for (const auto& [name, layer] : parallel_blocks()) expect_choices_work(layer, random, name);
  for (int round = 0; round < 300; ++round) {
    expect_choices_work(testing::random_block(random), random, "random block " + std::to_string(round));
  }
}

TEST(Recompute, RulesReplaceTheStrategyForTheirLayers) {
  const Differentiated layer = trained_block(small_llama(), 16, true, false);
  const Strategy strategy =
      parse_strategy("recompute=selective,recompute_layers=0-1:full/3:activated+normed_1/4:none").strategy;
  const auto dropped = [&](int64_t number) { return dropped_tensors(layer, strategy, number); };
  EXPECT_EQ(dropped(0), droppable_tensors(layer));
  EXPECT_EQ(dropped(1), droppable_tensors(layer));
  EXPECT_EQ(dropped(2), dropped_tensors(layer, Recompute::selective, {}));
  EXPECT_EQ(names_of(layer, dropped(3)), (Names{"activated", "normed_1"}));
  EXPECT_TRUE(dropped(4).empty());
  EXPECT_EQ(dropped(5), dropped_tensors(layer, Recompute::selective, {}));
  EXPECT_NE(dropped(0), dropped(2));
}

TEST(Recompute, NamesThatDropNothingAreRefusedWithWhatCanBeDropped) {
  const Differentiated layer = trained_block(small_llama(), 16, true, false);
  for (const std::string name : {"activatde", "down", "x", "d_activated"}) {
    const std::string text = refusal(layer, {name});
    EXPECT_NE(text.find("'" + name + "' is no tensor that is kept"), std::string::npos) << text;
    EXPECT_NE(text.find("activated"), std::string::npos) << text;
    EXPECT_NE(text.find("gate_up"), std::string::npos) << text;
  }
  EXPECT_NE(refusal(layer, {"qkv"}).find("unless what is made from it is dropped too"), std::string::npos);
  EXPECT_EQ(refusal(layer, {"qkv", "qkv.rotated"}), "");
}

/// Bytes that a model keeps from forward to backward, layer inputs included, head excluded.
int64_t kept_bytes(const Differentiated& layer, int64_t layers, Recompute preset) {
  const std::vector<int64_t> bytes = aligned_tensor_bytes(layer.graph, 64);
  int64_t sum = bytes[static_cast<size_t>(layer.graph.find(TensorRole::layer_input))];
  for (const int tensor : replay_plan(layer, dropped_tensors(layer, preset, {})).kept) {
    sum += bytes[static_cast<size_t>(tensor)];
  }
  return layers * sum;
}

TEST(Recompute, FullKeepsAnEighthOfTheBytesOfNoneAtMost) {
  for (const std::string name : {"gpt2", "llama-3-8b"}) {
    const ModelSpec model = load_model(name);
    ASSERT_GE(model.layers, 12);
    for (const bool fused : {false, true}) {
      const Differentiated layer = trained_block(model, 1024, fused, false);
      const auto none = static_cast<double>(kept_bytes(layer, model.layers, Recompute::none));
      const auto selective = static_cast<double>(kept_bytes(layer, model.layers, Recompute::selective));
      const auto full = static_cast<double>(kept_bytes(layer, model.layers, Recompute::full));
      fmt::print("{} ({} layers, {}): none keeps {:.1f} x, selective {:.1f} x the bytes of full\n", name, model.layers,
                 fused ? "fused" : "unfused", none / full, selective / full);
      EXPECT_GE(none / full, 8) << name;
      EXPECT_GE(none, selective) << name;
    }
  }
}

TEST(Recompute, SequenceParallelismDividesTheLayersInputTooSoTheFactorStays) {
  const ModelSpec model = load_model("llama-3-8b");
  const auto factor = [&](const Cut& cut) {
    const Differentiated layer = trained_block(model, 1024, true, false, cut);
    return static_cast<double>(kept_bytes(layer, model.layers, Recompute::none)) /
           static_cast<double>(kept_bytes(layer, model.layers, Recompute::full));
  };
  fmt::print(
      "llama-3-8b: none keeps {:.1f} x the bytes of full at tp = 1, {:.1f} x at tp = 8, {:.1f} x at tp = 8 with "
      "sequence parallelism\n",
      factor({1}), factor({8}), factor({8, 1, true}));
  EXPECT_GE(factor({8, 1, true}), 8);
  EXPECT_NEAR(factor({8, 1, true}), factor({1}), 0.1);
  EXPECT_LT(factor({8}), factor({1}) / 2);
}

}  // namespace
}  // namespace foresail
