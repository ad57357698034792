// A checkpoint of any layout loaded by any other.
#include <gtest/gtest.h>

#include "core/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/inspect.h"
#include "tests/checkpoint/layouts.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/checkpoint/thread_communicator.h"

namespace foresail {
namespace {

const std::vector<Quantity> kAll = {Quantity::parameter, Quantity::master, Quantity::moment1, Quantity::moment2};

const std::vector<Layout> kLayouts = {
    {.name = "one rank"},
    {.name = "three data ranks", .data = 3},
    {.name = "ZeRO-1 over three", .data = 3, .zero_stage = 1},
    {.name = "ZeRO-2 over five", .data = 5, .zero_stage = 2},
    {.name = "ZeRO-3 over three", .data = 3, .zero_stage = 3},
    {.name = "ZeRO-3 in pairs", .data = 6, .zero_stage = 3, .zero_group = 2},
    {.name = "ZeRO-1 in threes", .data = 6, .zero_stage = 1, .zero_group = 3},
    {.name = "ZeRO-3 with a stage that begins in the middle", .pp = 2, .data = 3, .zero_stage = 3},
    {.name = "ZeRO-1 on two stages", .pp = 2, .data = 2, .zero_stage = 1},
    {.name = "interleaved", .pp = 2, .virtual_stages = 2},
    {.name = "more virtual stages than layers", .pp = 3, .virtual_stages = 2, .data = 2, .zero_stage = 2},
    {.name = "ZB-V", .pp = 2, .virtual_stages = 2, .data = 3, .zero_stage = 3, .turned = true},
    {.name = "tensor-parallel, padded", .tp = 3},
    {.name = "tensor-parallel, padded, ZeRO-3", .data = 2, .tp = 3, .zero_stage = 3},
    {.name = "copies of KV heads", .tp = 4},
    {.name = "copies of KV heads, ZeRO-1", .data = 2, .tp = 4, .zero_stage = 1},
    {.name = "everything", .pp = 2, .data = 2, .tp = 2, .zero_stage = 3},
};

std::vector<std::string> none(const Layout& layout) {
  return std::vector<std::string>(static_cast<size_t>(layout.ranks()));
}

std::vector<std::string> save(const Layout& layout, const std::filesystem::path& folder, DType dtype = DType::f32) {
  return run_ranks(layout.ranks(), [&](Communicator& communicator) {
    RankMemory memory = memory_of(layout, communicator.rank(), dtype);
    memory.fill(kAll);
    const auto segments = memory.segments(kAll);
    save_checkpoint({folder, state_at(7), segments, 3, 64}, {&communicator, 0});
  });
}

/// Loads into memory that holds a pattern everywhere, so that what was not loaded and what was hit by mistake shows.
std::vector<std::string> restore(const Layout& layout, const std::filesystem::path& folder, std::string& digest) {
  return run_ranks(layout.ranks(), [&](Communicator& communicator) {
    RankMemory memory = memory_of(layout, communicator.rank());
    const auto segments = memory.segments(kAll);
    const std::string own = restore_checkpoint(folder / "step-7", segments, {}, {&communicator, 0});
    EXPECT_EQ(memory.wrong(kAll), "") << layout.name << ", rank " << communicator.rank();
    if (communicator.rank() == 0) digest = own;
  });
}

TEST(Reshard, AnyLayoutLoadsTheCheckpointOfAnyOther) {
  std::string first_digest;
  for (const Layout& writer : kLayouts) {
    const TemporaryFolder folder;
    ASSERT_EQ(save(writer, folder.path()), none(writer)) << writer.name;
    for (const Layout& reader : kLayouts) {
      std::string digest;
      EXPECT_EQ(restore(reader, folder.path(), digest), none(reader)) << writer.name << " -> " << reader.name;
      if (first_digest.empty()) first_digest = digest;
      EXPECT_EQ(digest, first_digest) << writer.name << " -> " << reader.name;
    }
  }
}

TEST(Reshard, EveryElementIsStoredOnceAndDigestsDoNotDependOnTheLayout) {
  std::map<std::string, std::string> reference;
  for (const Layout& layout : kLayouts) {
    const TemporaryFolder folder;
    ASSERT_EQ(save(layout, folder.path()), none(layout)) << layout.name;
    ASSERT_TRUE(verify_checkpoint(folder.path() / "step-7").passed());
    const Checkpoint checkpoint(folder.path() / "step-7");
    std::map<std::string, std::string> digests = {{"", checkpoint.manifest().parameters_digest}};
    int64_t stored = 0;
    for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
      digests[tensor.full_name()] = tensor.digest;
      for (const Slab& slab : tensor.slabs) stored += slab.part.elements();
    }
    EXPECT_EQ(stored, 4 * kLayoutModelElements) << layout.name;
    if (reference.empty()) reference = digests;
    EXPECT_EQ(digests, reference) << layout.name;
  }
}

TEST(Reshard, ZeroSpreadsTheOptimizerStateOverTheFilesOfAllRanks) {
  const TemporaryFolder folder;
  const Layout layout = {.name = "ZeRO-1", .data = 4, .zero_stage = 1};
  ASSERT_EQ(save(layout, folder.path()), none(layout));
  std::map<int32_t, int64_t> moments_by_file;
  const Checkpoint checkpoint(folder.path() / "step-7");
  for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.quantity != Quantity::moment1) continue;
    for (const Slab& slab : tensor.slabs) moments_by_file[slab.file] += slab.part.elements();
  }
  ASSERT_EQ(moments_by_file.size(), 4u);
  for (const auto& [file, elements] : moments_by_file) {
    EXPECT_NEAR(static_cast<double>(elements), kLayoutModelElements / 4.0, kLayoutModelElements / 20.0) << file;
  }
}

/// The errors of all ranks after `change` has touched one rank's memory between loading and comparing.
std::vector<std::string> errors_after(const Layout& layout, Quantity quantity,
                                      const std::function<void(RankMemory&, int rank)>& change) {
  return run_ranks(layout.ranks(), [&](Communicator& communicator) {
    RankMemory memory = memory_of(layout, communicator.rank());
    memory.fill(kAll);
    change(memory, communicator.rank());
    for (const SegmentView& segment : memory.segments({quantity})) tensor_digests(segment, {&communicator, 0});
  });
}

const ParameterSlice& slice_of(const std::vector<ParameterSlice>& slices, const std::string& tensor) {
  for (const ParameterSlice& slice : slices) {
    if (slice.tensor == tensor) return slice;
  }
  throw std::logic_error("no slice of " + tensor);
}

TEST(Reshard, AReplicaThatDiffersIsNamedOnAllRanks) {
  const Layout layout = {.name = "replicas", .data = 4, .zero_stage = 1, .zero_group = 2};
  for (const Quantity quantity : {Quantity::parameter, Quantity::moment2}) {
    const auto errors = errors_after(layout, quantity, [&](RankMemory& memory, int rank) {
      if (rank == 2)
        memory.set(quantity, slice_of(memory.held(quantity), "layer.1.attention.weight").element_offset, 9);
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("layer.1.attention.weight"), std::string::npos) << error;
      EXPECT_NE(error.find("rank 0 and rank 2"), std::string::npos) << error;
    }
  }
}

TEST(Reshard, ASecondHolderOfATiedWeightMustHoldWhatTheFirstHoldsWhereverZeroCutsIt) {
  const Layout layout = {.name = "tied", .pp = 2, .data = 3, .zero_stage = 3};
  const auto sound = errors_after(layout, Quantity::parameter, [](RankMemory&, int) {});
  EXPECT_EQ(sound, none(layout));
  const auto errors = errors_after(layout, Quantity::parameter, [](RankMemory& memory, int rank) {
    if (rank == 4) {
      const ParameterSlice& slice = slice_of(memory.slices, "embedding.weight");
      ASSERT_TRUE(slice.second_holder);
      memory.set(Quantity::parameter, slice.element_offset, 9);
    }
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("its two holders"), std::string::npos) << error;
}

TEST(Reshard, TheLayoutsAreAwkwardEnough) {
  bool partial_rows = false, gaps_in_rows = false, cut_apart = false;
  for (const Layout& layout : kLayouts) {
    std::map<Rectangle, bool> embedding;  // by rectangle: of a second holder
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      for (const ParameterSlice& slice : memory_of(layout, rank).state) {
        const Rectangle part = rectangle_of(slice);
        partial_rows |= slice.shape.size() > 1 && layout.tp == 1 && part.columns() < slice.shape[1];
        gaps_in_rows |= part.rows() > 1 && slice.row_stride > part.columns();
        if (slice.tensor != "embedding.weight") continue;
        for (const auto& [other, second] : embedding) {
          const Rectangle both = intersection(other, part);
          cut_apart |= second != slice.second_holder && other != part && both.rows() > 0 && both.columns() > 0;
        }
        embedding[part] = slice.second_holder;
      }
    }
  }
  EXPECT_TRUE(partial_rows && gaps_in_rows && cut_apart);
}

TEST(Reshard, ACheckpointOfTheFirstReleaseLoads) {
  const std::filesystem::path path = std::filesystem::path(TEST_FOLDER) / "written_by_0.1.0" / "step-7";
  ASSERT_TRUE(verify_checkpoint(path).passed());
  RankMemory memory = rank_memory(1, 1, 1, 0);
  const auto segments = memory.segments(kAdamW);
  EXPECT_EQ(restore_checkpoint(path, segments, {}, {}), Checkpoint(path).manifest().parameters_digest);
  EXPECT_EQ(memory.wrong(kAdamW), "");
  EXPECT_EQ(Checkpoint(path).state(), state_at(7));
}

}  // namespace
}  // namespace foresail
