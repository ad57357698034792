// Where weights lie in a unit, which rectangles a rank holds of them, and what ZeRO leaves of those to each rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "program/autodiff.h"
#include "program/units.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_gpt2;
using testing::small_llama;
using testing::small_qwen3;

Graph sharded_block(const ModelSpec& model, const Cut& cut) {
  GraphOptions options;
  options.sequence_length = 16;
  options.context_parallel = cut.cp;
  options.kv_copies = cut.kv_copies;
  return shard(build_graphs(model, options).block, cut);
}

Unit unit_of(const Graph& graph, const Cut& cut, int64_t shard_ranks = 1) {
  return place_weights(graph, {.cut = cut,
                               .shard_ranks = shard_ranks,
                               .held_elsewhere = {},
                               .second_holder = {},
                               .shared = {},
                               .partial = differentiate(graph).partial_weight_gradients});
}

const FlatRange& range_of(const Graph& graph, const Unit& unit, const std::string& weight) {
  for (size_t w = 0; w < graph.weights.size(); ++w) {
    if (graph.weights[w].name != weight) continue;
    const auto range = std::find_if(unit.ranges.begin(), unit.ranges.end(), [&](const FlatRange& r) {
      return r.begin <= unit.offsets[w] && unit.offsets[w] < r.end;
    });
    if (range != unit.ranges.end()) return *range;
  }
  throw std::runtime_error("no range holds " + weight);
}

/// Elements of the segment that a slice stands for: (row, column) of the logical tensor -> where.
using Elements = std::map<std::pair<int64_t, int64_t>, int64_t>;

Elements elements_of(const ParameterSlice& slice) {
  Elements elements;
  for (int64_t r = slice.row_begin; r < slice.row_end; ++r) {
    for (int64_t c = slice.column_begin; c < slice.column_end; ++c) {
      elements[{r, c}] = slice.element_offset + (r - slice.row_begin) * slice.row_stride + c - slice.column_begin;
    }
  }
  return elements;
}

std::map<std::string, Elements> elements_of(const std::vector<ParameterSlice>& slices) {
  std::map<std::string, Elements> elements;
  for (const ParameterSlice& slice : slices) {
    for (const auto& [place, offset] : elements_of(slice)) {
      EXPECT_TRUE(elements[slice.tensor].emplace(place, offset).second) << slice.tensor << " twice in one rank";
    }
  }
  return elements;
}

struct UnitCase {
  std::string name;
  ModelSpec model;
  Cut cut;
};

std::vector<UnitCase> all_cases() {
  ModelSpec padded = small_llama(), ends_in_padding = small_llama(), biased = small_llama(), tiny = small_gpt2();
  padded.ffn = 45;
  ends_in_padding.ffn = 37;  // rank 3 holds 7 of 10 columns; element 128 of its down projection would be column 8
  biased.qkv_bias = true;
  tiny.ffn = 5;
  return {{"one rank", small_llama(), {}},
          {"tp", small_gpt2(), {.tp = 2}},
          {"padded columns", padded, {.tp = 4, .kv_copies = 2}},
          {"shares that end in padding", ends_in_padding, {.tp = 4, .kv_copies = 2}},
          {"copies and biases", biased, {.tp = 4, .sequence_parallel = true, .kv_copies = 2}},
          {"a rank without FFN", tiny, {.tp = 4}},
          {"norms of heads", small_qwen3(), {.tp = 2, .sequence_parallel = true}}};
}

TEST(Units, RangesFollowEachOtherAndDivideByTheRanksThatShareThem) {
  for (const UnitCase& test : all_cases()) {
    for (const int64_t shard_ranks : {1, 3, 4}) {
      const Unit unit = unit_of(sharded_block(test.model, test.cut), test.cut, shard_ranks);
      int64_t end = 0;
      for (const FlatRange& range : unit.ranges) {
        EXPECT_EQ(range.begin, end);
        EXPECT_GT(range.end, range.begin);
        EXPECT_EQ((range.end - range.begin) % (kParameterAlignment * shard_ranks), 0) << test.name;
        end = range.end;
      }
      EXPECT_EQ(unit.elements, end);
    }
  }
}

TEST(Units, WeightsThatAreTreatedAlikeShareARange) {
  const Cut cut{.tp = 2, .sequence_parallel = true};
  const Graph graph = sharded_block(small_gpt2(), cut);
  const Unit unit = unit_of(graph, cut);
  const FlatRange& products = range_of(graph, unit, "down");
  EXPECT_TRUE(products.decay);
  EXPECT_TRUE(products.from_product);
  EXPECT_FALSE(products.partial);
  EXPECT_EQ(products.count_rule, CountRule::every_tensor_rank);
  EXPECT_EQ(range_of(graph, unit, "qkv").begin, products.begin);
  EXPECT_EQ(products.begin, unit.products_begin);
  const FlatRange& cut_biases = range_of(graph, unit, "up_bias");
  EXPECT_FALSE(cut_biases.decay);
  EXPECT_FALSE(cut_biases.from_product);
  EXPECT_EQ(cut_biases.count_rule, CountRule::every_tensor_rank);
  const FlatRange& norms = range_of(graph, unit, "norm_1");
  EXPECT_FALSE(norms.decay);
  EXPECT_TRUE(norms.partial);
  EXPECT_EQ(norms.count_rule, CountRule::tensor_rank_zero);
  EXPECT_EQ(range_of(graph, unit, "down_bias").begin, norms.begin);
  EXPECT_EQ(unit.ranges.size(), 3u);
}

TEST(Units, CopiedKvHeadsAreCountedOnce) {
  const Cut cut{.tp = 4, .kv_copies = 2};
  const Graph graph = sharded_block(small_llama(), cut);
  const Unit unit = unit_of(graph, cut);
  EXPECT_EQ(range_of(graph, unit, "kv").count_rule, CountRule::first_copy);
  EXPECT_EQ(range_of(graph, unit, "q").count_rule, CountRule::every_tensor_rank);
  EXPECT_TRUE(range_of(graph, unit, "kv").from_product);
}

TEST(Units, EmbeddingIsNoProductAndASecondHolderIsCountedByNobody) {
  GraphOptions options;
  options.sequence_length = 16;
  const ModelGraphs graphs = build_graphs(small_gpt2(), options);
  const Unit embedding = unit_of(graphs.embedding, {});
  for (const FlatRange& range : embedding.ranges) EXPECT_FALSE(range.from_product);
  Placement placement;
  placement.second_holder = {2};  // norm, its bias, head
  const Unit head = place_weights(graphs.head, placement);
  EXPECT_EQ(range_of(graphs.head, head, "head").count_rule, CountRule::nobody);
  placement.held_elsewhere = {2};
  const Unit without = place_weights(graphs.head, placement);
  EXPECT_EQ(without.offsets[2], -1);
  EXPECT_LT(without.elements, head.elements);
}

TEST(Slices, CoverEveryElementOnceAndNeverTouchPadding) {
  for (const UnitCase& test : all_cases()) {
    const Graph graph = sharded_block(test.model, test.cut);
    const Unit unit = unit_of(graph, test.cut);
    std::map<std::string, std::set<std::pair<int64_t, int64_t>>> held;
    std::map<std::string, size_t> sizes;
    for (int64_t rank = 0; rank < test.cut.tp; ++rank) {
      std::set<int64_t> used;
      for (const ParameterSlice& slice : slices_of(graph, unit, 0, 7, test.cut, rank, {})) {
        EXPECT_GT(slice.elements(), 0);
        sizes[slice.tensor] = static_cast<size_t>(slice.shape[0] * (slice.shape.size() > 1 ? slice.shape[1] : 1));
        for (const auto& [place, offset] : elements_of(slice)) {
          EXPECT_TRUE(used.insert(offset).second) << test.name << " " << slice.tensor;
          EXPECT_LT(offset, unit.elements);
          EXPECT_EQ(held[slice.tensor].insert(place).second, !slice.replicated) << test.name << " " << slice.tensor;
        }
      }
    }
    for (const auto& [name, size] : sizes) EXPECT_EQ(held[name].size(), size) << test.name << " " << name;
  }
}

TEST(Slices, NamesTheLayerAndStridesOverPaddedColumns) {
  ModelSpec model = small_llama();
  model.ffn = 45;
  const Cut cut{.tp = 4, .kv_copies = 2};
  const Graph graph = sharded_block(model, cut);
  for (const ParameterSlice& slice : slices_of(graph, unit_of(graph, cut), 0, 7, cut, 3, {})) {
    if (slice.tensor != "model.layers.7.mlp.down_proj.weight") continue;
    EXPECT_EQ(slice.column_begin, 36);
    EXPECT_EQ(slice.column_end, 45);
    EXPECT_EQ(slice.row_stride, 12);
    return;
  }
  FAIL() << "no slice of the down projection";
}

/// Together the shard ranks hold each element once; an element has the same value at both offsets.
TEST(ShardSlices, ShareWhatTheRankHoldsWholeWithoutGapsOrOverlaps) {
  for (const UnitCase& test : all_cases()) {
    for (const int64_t shard_ranks : {1, 2, 3, 5, 16}) {
      const Graph graph = sharded_block(test.model, test.cut);
      const Unit unit = unit_of(graph, test.cut, shard_ranks);
      const int64_t unit_offset = 2 * unit.elements;  // the third layer
      for (int64_t rank = 0; rank < test.cut.tp; ++rank) {
        const auto whole = slices_of(graph, unit, unit_offset, 7, test.cut, rank, {});
        std::map<std::string, Elements> together;
        for (int64_t r = 0; r < shard_ranks; ++r) {
          const auto inside =
              elements_of(shard_slices(whole, unit, unit_offset, shard_ranks, r, SliceCoordinates::whole));
          const auto own = elements_of(shard_slices(whole, unit, unit_offset, shard_ranks, r));
          for (const auto& [name, elements] : inside) {
            for (const auto& [place, offset] : elements) {
              EXPECT_TRUE(together[name].emplace(place, offset).second) << test.name << " " << name;
              const int64_t in_shard = own.at(name).at(place);
              EXPECT_GE(in_shard, unit_offset / shard_ranks);
              EXPECT_LT(in_shard, (unit_offset + unit.elements) / shard_ranks);
              // The share of a range begins where the whole range does, divided by the ranks.
              const auto range = std::find_if(unit.ranges.begin(), unit.ranges.end(), [&, at = offset](auto& f) {
                return f.begin <= at - unit_offset && at - unit_offset < f.end;
              });
              const int64_t share = (range->end - range->begin) / shard_ranks;
              EXPECT_EQ(offset - unit_offset - range->begin - r * share,
                        in_shard - (unit_offset + range->begin) / shard_ranks);
            }
          }
        }
        EXPECT_EQ(together, elements_of(whole)) << test.name << " " << shard_ranks;
      }
    }
  }
}

TEST(ShardSlices, AShareIsAtMostThreeRectanglesOfASlice) {
  for (const UnitCase& test : all_cases()) {
    const Graph graph = sharded_block(test.model, test.cut);
    const Unit unit = unit_of(graph, test.cut, 3);
    const auto whole = slices_of(graph, unit, 0, 7, test.cut, 0, {});
    size_t most = 0;
    for (int64_t r = 0; r < 3; ++r) {
      for (const ParameterSlice& slice : whole) {
        const auto parts = shard_slices({slice}, unit, 0, 3, r);
        most = std::max(most, parts.size());
        for (const ParameterSlice& part : parts) {
          EXPECT_EQ(part.row_stride, slice.row_stride);
          EXPECT_EQ(part.shape, slice.shape);
          EXPECT_EQ(part.replicated, slice.replicated);
        }
      }
    }
    EXPECT_LE(most, 3u);
    EXPECT_GE(most, 1u);
  }
}

}  // namespace
}  // namespace foresail
