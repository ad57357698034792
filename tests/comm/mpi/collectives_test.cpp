// Collectives over MPI against what they are defined to be, over the world, overlapping sub-groups and groups of one.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/float16.h"
#include "tests/comm/mpi/world.h"

namespace foresail {
namespace {

template <typename T>
void expect_same_bits(const std::vector<T>& actual, const std::vector<T>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  if (actual.empty()) return;
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(T)), 0);
}

constexpr int64_t kCounts[] = {0, 1, 7, 1000, 2048, 2049, 40001};
constexpr int64_t kLargeCount = (int64_t{3} << 20) / 4 + 5;  // above 1 MiB in every type, no multiple of a piece

template <typename T>
class CollectivesOf : public testing::Test {};
using ElementTypes = testing::Types<double, float, int32_t>;
TYPED_TEST_SUITE(CollectivesOf, ElementTypes);

TYPED_TEST(CollectivesOf, AllReduceAddsInRankOrderToTheBit) {
  for (const MpiOptions& options : all_options()) {
    World world(options);
    world.for_each_group([&](GroupId group, const std::vector<int>& members) {
      for (int64_t count : kCounts) {
        if (options.piece_bytes == 64 && count > 3000) continue;
        auto data = contribution<TypeParam>(world.comm->rank(), count);
        world.comm->all_reduce(data.data(), count, dtype_of<TypeParam>(), ReduceKind::sum, group);
        expect_same_bits(data, sum_in_rank_order<TypeParam>(members, count));
      }
    });
  }
}

TYPED_TEST(CollectivesOf, LargeAllReduceIsTheSameInPiecesOfAnySize) {
  for (const MpiOptions& options : {MpiOptions{}, MpiOptions{true, 100'000}, MpiOptions{false, int64_t{1} << 20}}) {
    World world(options);
    auto data = contribution<TypeParam>(world.comm->rank(), kLargeCount);
    world.comm->all_reduce(data.data(), kLargeCount, dtype_of<TypeParam>(), ReduceKind::sum, 0);
    expect_same_bits(data, sum_in_rank_order<TypeParam>(world.groups[0], kLargeCount));
  }
}

TYPED_TEST(CollectivesOf, MaximumIsTheLargestOfAllRanks) {
  for (const MpiOptions& options : all_options()) {
    World world(options);
    world.for_each_group([&](GroupId group, const std::vector<int>& members) {
      const int64_t count = 3001;
      auto data = contribution<TypeParam>(world.comm->rank(), count);
      world.comm->all_reduce(data.data(), count, dtype_of<TypeParam>(), ReduceKind::max, group);
      auto expected = contribution<TypeParam>(members.front(), count);
      for (int member : members) {
        const auto other = contribution<TypeParam>(member, count);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] = std::max(expected[i], other[i]);
      }
      expect_same_bits(data, expected);
    });
  }
}

TYPED_TEST(CollectivesOf, ReduceScatterGivesEachMemberItsPartOfTheSum) {
  for (const MpiOptions& options : all_options()) {
    World world(options);
    world.for_each_group([&](GroupId group, const std::vector<int>& members) {
      for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{17}, int64_t{1000}, int64_t{30001}}) {
        if (options.piece_bytes == 64 && count > 3000) continue;
        const auto size = static_cast<int64_t>(members.size());
        const int64_t begin = world.comm->group_rank(group) * count;
        const auto sum = sum_in_rank_order<TypeParam>(members, count * size);
        const std::vector<TypeParam> expected(sum.begin() + begin, sum.begin() + begin + count);

        const auto input = contribution<TypeParam>(world.comm->rank(), count * size);
        std::vector<TypeParam> output(static_cast<size_t>(count));
        world.comm->reduce_scatter(input.data(), output.data(), count, dtype_of<TypeParam>(), group);
        expect_same_bits(output, expected);

        auto in_place = input;
        world.comm->reduce_scatter(in_place.data(), in_place.data() + begin, count, dtype_of<TypeParam>(), group);
        expect_same_bits(std::vector<TypeParam>(in_place.begin() + begin, in_place.begin() + begin + count), expected);

        auto to_the_front = input;
        world.comm->reduce_scatter(to_the_front.data(), to_the_front.data(), count, dtype_of<TypeParam>(), group);
        expect_same_bits(std::vector<TypeParam>(to_the_front.begin(), to_the_front.begin() + count), expected);
      }
    });
  }
}

TYPED_TEST(CollectivesOf, AllGatherPutsPartsInGroupOrder) {
  World world(MpiOptions{});
  world.for_each_group([&](GroupId group, const std::vector<int>& members) {
    for (int64_t count : {int64_t{0}, int64_t{3}, int64_t{200001}}) {
      std::vector<TypeParam> expected;
      for (int member : members) {
        const auto part = contribution<TypeParam>(member, count);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const auto input = contribution<TypeParam>(world.comm->rank(), count);
      std::vector<TypeParam> output(expected.size(), TypeParam{-1});
      world.comm->all_gather(input.data(), output.data(), count, dtype_of<TypeParam>(), group);
      expect_same_bits(output, expected);

      std::vector<TypeParam> in_place(expected.size(), TypeParam{-1});
      TypeParam* mine = in_place.data() + world.comm->group_rank(group) * count;
      std::copy(input.begin(), input.end(), mine);
      world.comm->all_gather(mine, in_place.data(), count, dtype_of<TypeParam>(), group);
      expect_same_bits(in_place, expected);
    }
  });
}

TYPED_TEST(CollectivesOf, AllToAllExchangesParts) {
  World world(MpiOptions{});
  world.for_each_group([&](GroupId group, const std::vector<int>& members) {
    const auto size = static_cast<int64_t>(members.size());
    for (int64_t count : {int64_t{0}, int64_t{3}, int64_t{100001}}) {
      const auto input = contribution<TypeParam>(world.comm->rank(), count * size);
      std::vector<TypeParam> output(input.size(), TypeParam{-1}), expected;
      world.comm->all_to_all(input.data(), output.data(), count, dtype_of<TypeParam>(), group);
      for (int member : members) {
        const auto theirs = contribution<TypeParam>(member, count * size);
        const auto part = theirs.begin() + world.comm->group_rank(group) * count;
        expected.insert(expected.end(), part, part + count);
      }
      expect_same_bits(output, expected);
    }
  });
}

TYPED_TEST(CollectivesOf, RingShiftsGoAroundTheGroup) {
  World world(MpiOptions{});
  world.for_each_group([&](GroupId group, const std::vector<int>& members) {
    const size_t size = members.size(), rank = static_cast<size_t>(world.comm->group_rank(group));
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{200001}}) {
      const auto bytes = count * static_cast<int64_t>(sizeof(TypeParam));
      auto held = contribution<TypeParam>(world.comm->rank(), count);
      std::vector<TypeParam> arrived(held.size(), TypeParam{-1});
      for (size_t shift = 1; shift <= size; ++shift) {  // once around: everyone's own comes back
        world.comm->ring_shift(held.data(), arrived.data(), bytes, group);
        expect_same_bits(arrived, contribution<TypeParam>(members[(rank + size - shift) % size], count));
        std::swap(held, arrived);
      }
    }
  });
}

/// The life of a ZeRO shard: reduce-scatter into one's part of the whole buffer, work on it, gather it in place.
TYPED_TEST(CollectivesOf, AShardLivesInsideTheWholeBuffer) {
  for (const MpiOptions& options : all_options()) {
    World world(options);
    world.for_each_group([&](GroupId group, const std::vector<int>& members) {
      for (int64_t count : {int64_t{1}, int64_t{200}, int64_t{20011}}) {
        if (options.piece_bytes == 64 && count > 3000) continue;
        const auto size = static_cast<int64_t>(members.size());
        auto whole = contribution<TypeParam>(world.comm->rank(), count * size);
        TypeParam* mine = whole.data() + world.comm->group_rank(group) * count;
        world.comm->reduce_scatter(whole.data(), mine, count, dtype_of<TypeParam>(), group);
        world.comm->all_gather(mine, whole.data(), count, dtype_of<TypeParam>(), group);
        auto all_reduced = contribution<TypeParam>(world.comm->rank(), count * size);
        world.comm->all_reduce(all_reduced.data(), count * size, dtype_of<TypeParam>(), ReduceKind::sum, group);
        expect_same_bits(whole, sum_in_rank_order<TypeParam>(members, count * size));
        expect_same_bits(all_reduced, whole);
      }
    });
  }
}

TEST(Collectives, AResultIsTheSameInEveryRepetition) {
  for (const MpiOptions& options : all_options()) {
    World world(options);
    std::vector<float> first;
    for (int repetition = 0; repetition < 20; ++repetition) {
      auto data = contribution<float>(world.comm->rank(), 2500);
      world.comm->all_reduce(data.data(), 2500, DType::f32, ReduceKind::sum, 0);
      if (repetition == 0) first = data;
      expect_same_bits(data, first);
    }
  }
}

TEST(Collectives, CallsOfAllKindsAndGroupsMayFollowEachOtherWithoutBarriers) {
  for (const MpiOptions& options : all_options()) {
    World world(options);
    for (int round = 0; round < 60; ++round) {
      world.for_each_group([&](GroupId group, const std::vector<int>& members) {
        const int64_t count = 1 + (round * 379) % 2500;  // small and piecewise calls alternate
        auto data = contribution<float>(world.comm->rank(), count, round);
        world.comm->all_reduce(data.data(), count, DType::f32, ReduceKind::sum, group);
        expect_same_bits(data, sum_in_rank_order<float>(members, count, round));
        const auto size = static_cast<int64_t>(members.size());
        const auto input = contribution<float>(world.comm->rank(), 100 * size, round);
        std::vector<float> part(100);
        world.comm->reduce_scatter(input.data(), part.data(), 100, DType::f32, group);
        const auto sum = sum_in_rank_order<float>(members, 100 * size, round);
        const int64_t begin = world.comm->group_rank(group) * 100;
        expect_same_bits(part, std::vector<float>(sum.begin() + begin, sum.begin() + begin + 100));
      });
    }
  }
}

TEST(Collectives, ANanOnAnyRankIsTheMaximumOnAll) {
  for (const MpiOptions& options : all_options()) {
    World world(options);
    for (int poisoned = 0; poisoned < world.comm->size(); ++poisoned) {
      double value = world.comm->rank() == poisoned ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      world.comm->all_reduce(&value, 1, DType::f64, ReduceKind::max, 0);
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(Collectives, BroadcastComesFromTheRootOfTheGroup) {
  World world(MpiOptions{});
  world.for_each_group([&](GroupId group, const std::vector<int>& members) {
    for (int root = 0; root < static_cast<int>(members.size()); ++root) {
      auto data = contribution<float>(world.comm->rank(), 300001);
      world.comm->broadcast(data.data(), 300001 * 4, root, group);
      expect_same_bits(data, contribution<float>(members[static_cast<size_t>(root)], 300001));
    }
  });
}

TEST(Collectives, GroupsKnowTheirMembers) {
  World world(MpiOptions{});
  for (size_t group = 0; group < world.groups.size(); ++group) {
    const std::vector<int>& members = world.groups[group];
    const auto self = std::find(members.begin(), members.end(), world.comm->rank());
    const int expected = self == members.end() ? -1 : static_cast<int>(self - members.begin());
    EXPECT_EQ(world.comm->group_rank(static_cast<GroupId>(group)), expected);
    EXPECT_EQ(world.comm->group_size(static_cast<GroupId>(group)), static_cast<int>(members.size()));
  }
}

TEST(Collectives, CreatingGroupsAgainReplacesThem) {
  World world(MpiOptions{});
  const int size = world.comm->size();
  world.comm->create_groups({{0}, range_of_ranks(0, size)});
  EXPECT_EQ(world.comm->group_size(1), size);
  int32_t one = 1;
  world.comm->all_reduce(&one, 1, DType::i32, ReduceKind::sum, 1);
  EXPECT_EQ(one, size);
  EXPECT_THROW(world.comm->group_size(2), Error);
}

TEST(Collectives, SixteenBitElementsAreSummedInFloatAndRoundedOnce) {
  World world(MpiOptions{});
  const int size = world.comm->size();
  world.comm->create_groups({range_of_ranks(0, size)});
  const int64_t count = 1000;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    // 1 and many halves of its last place: rounded rank by rank they would vanish.
    const float step = dtype == DType::f16 ? 0x1p-11f : 0x1p-8f;
    const std::vector<float> mine(static_cast<size_t>(count), world.comm->rank() == 0 ? 1.0f : step);
    std::vector<uint16_t> data(mine.size()), expected(mine.size());
    const std::vector<float> sum(mine.size(), 1.0f + static_cast<float>(size - 1) * step);
    round_to_16_bit(mine.data(), data.data(), dtype, count);
    round_to_16_bit(sum.data(), expected.data(), dtype, count);
    world.comm->all_reduce(data.data(), count, dtype, ReduceKind::sum, 0);
    EXPECT_EQ(data, expected) << name_of(dtype);
    std::vector<uint16_t> whole(mine.size() * static_cast<size_t>(size)), part(mine.size());
    for (int i = 0; i < size; ++i) round_to_16_bit(mine.data(), whole.data() + i * count, dtype, count);
    world.comm->reduce_scatter(whole.data(), part.data(), count, dtype, 0);
    EXPECT_EQ(part, expected) << name_of(dtype);
  }
}

TEST(Collectives, WrongUseIsRefusedBeforeAnythingIsSent) {
  World world(MpiOptions{});
  float value = 0;
  EXPECT_THROW(world.comm->all_reduce(&value, 1, DType::f32, ReduceKind::sum, 99), Error);
  EXPECT_THROW(world.comm->all_reduce(&value, -1, DType::f32, ReduceKind::sum, 0), Error);
  EXPECT_THROW(world.comm->broadcast(&value, 4, world.comm->size(), 0), Error);
  if (world.comm->size() > 1) {
    const GroupId of_another = 1 + (world.comm->rank() + 1) % world.comm->size();
    EXPECT_THROW(world.comm->barrier(of_another), Error);
    float from = 0;
    EXPECT_THROW(world.comm->all_to_all(&from, &value, 1, DType::f32, of_another), Error);
    EXPECT_THROW(world.comm->ring_shift(&from, &value, 4, of_another), Error);
  }
  EXPECT_THROW(world.comm->create_groups({{world.comm->size()}}), Error);
  EXPECT_THROW(world.comm->create_groups({{}}), Error);
}

TEST(Collectives, DescriptionNamesTheLibrary) {
  World world(MpiOptions{});
  EXPECT_NE(world.comm->description().find("MPI"), std::string::npos);
  EXPECT_NE(world.comm->description().find('.'), std::string::npos);
}

}  // namespace
}  // namespace foresail
