// Collectives and messages by kind, group size and bytes, every rank in some group of that size at the same time.
#include <algorithm>
#include <array>
#include <cstddef>

#include <fmt/format.h>

#include "profiler/basics.h"
#include "runtime/executor/arena.h"

namespace foresail {
namespace {

constexpr int kMessageTag = 7;
constexpr int64_t kFloat = 4;

enum class Kind { all_reduce, all_gather, reduce_scatter, all_to_all, ring_shift, broadcast, send };
struct KindName {
  Kind kind;
  const char* name;
};
constexpr std::array<KindName, 7> kKinds{{{Kind::all_reduce, "all_reduce"},
                                          {Kind::send, "send"},
                                          {Kind::all_gather, "all_gather"},
                                          {Kind::reduce_scatter, "reduce_scatter"},
                                          {Kind::all_to_all, "all_to_all"},
                                          {Kind::ring_shift, "ring_shift"},
                                          {Kind::broadcast, "broadcast"}}};

struct Transfer {
  Kind kind;
  int64_t group_size, bytes;
};

std::string key_of(const Transfer& what) {
  const auto name = std::find_if(kKinds.begin(), kKinds.end(), [&](const KindName& k) { return k.kind == what.kind; });
  return fmt::format("{}/{}/{}", name->name, what.group_size, what.bytes);
}

/// `bytes` is the operand of an all-reduce, the gathered output, the whole input of a reduce-scatter or an all-to-all, one
/// message. `other` is as large as `data`, for what cannot be done in place.
void transfer(Team& team, const Transfer& what, GroupId group, std::byte* data, std::byte* other) {
  Communicator& communicator = team.communicator();
  const int64_t count = what.bytes / kFloat, part = count / what.group_size;
  std::byte* const mine = data + communicator.group_rank(group) * part * kFloat;
  switch (what.kind) {
    case Kind::all_reduce: communicator.all_reduce(data, count, DType::f32, ReduceKind::sum, group); break;
    case Kind::all_gather: communicator.all_gather(mine, data, part, DType::f32, group); break;
    case Kind::reduce_scatter: communicator.reduce_scatter(data, mine, part, DType::f32, group); break;
    case Kind::all_to_all: communicator.all_to_all(data, other, part, DType::f32, group); break;
    case Kind::ring_shift: communicator.ring_shift(data, other, what.bytes, group); break;
    case Kind::broadcast: communicator.broadcast(data, what.bytes, 0, group); break;
    case Kind::send: break;
  }
}

/// There and back between neighbours 2i and 2i + 1: twice the duration of one message.
void ping_pong(Team& team, int64_t bytes, std::byte* data) {
  Communicator& communicator = team.communicator();
  const int rank = communicator.rank(), peer = rank ^ 1;
  if (peer >= communicator.size()) return;
  const auto send = [&] { communicator.wait(communicator.send(data, bytes, peer, kMessageTag)); };
  const auto receive = [&] { communicator.wait(communicator.receive(data, bytes, peer, kMessageTag)); };
  if (rank < peer) {
    send();
    receive();
  } else {
    receive();
    send();
  }
}

std::vector<std::vector<int>> sibling_groups(int ranks, int64_t size) {
  std::vector<std::vector<int>> groups;
  for (int first = 0; first < ranks; first += static_cast<int>(size)) {
    auto& group = groups.emplace_back();
    for (int r = first; r < first + static_cast<int>(size); ++r) group.push_back(r);
  }
  return groups;
}

constexpr int64_t kEssentialBytes = int64_t{1} << 20;

/// Every kind in the largest group, small and large, so that a line through them says something about any size: without
/// these a strategy that uses the kind has no price.
std::vector<Transfer> essential_transfers(int ranks, const std::vector<int64_t>& sizes) {
  const auto above = std::upper_bound(sizes.begin() + 1, sizes.end(), kEssentialBytes);
  std::vector<Transfer> wanted;
  for (const int64_t size : {sizes.front(), *(above - 1)}) {
    for (const KindName& kind : kKinds) {
      const int64_t group = kind.kind == Kind::send ? 2 : ranks;
      const int64_t parts = kind.kind == Kind::send ? 1 : ranks;
      wanted.push_back({kind.kind, group, std::max(size / (kFloat * parts), int64_t{1}) * kFloat * parts});
    }
  }
  return wanted;
}

/// The others: small ones first, every kind at a size before the next size.
std::vector<Transfer> transfers(int ranks, const std::vector<int64_t>& sizes) {
  std::vector<Transfer> wanted;
  for (const int64_t size : sizes) {
    wanted.push_back({Kind::send, 2, std::max(size / kFloat, int64_t{1}) * kFloat});
    for (int64_t group = 2; group <= ranks; ++group) {
      if (ranks % group != 0) continue;
      const int64_t whole = std::max(size / (kFloat * group), int64_t{1}) * kFloat * group;
      for (const KindName& kind : kKinds) {
        if (kind.kind != Kind::send) wanted.push_back({kind.kind, group, whole});
      }
    }
  }
  return wanted;
}

Measurement measure(Team& team, const Transfer& what, const RepeatLimits& limits, std::byte* data, std::byte* other) {
  const auto own_group = static_cast<GroupId>(1 + team.communicator().rank() / what.group_size);
  Measurement own = repeat(team, limits, [&] {
    if (what.kind == Kind::send)
      ping_pong(team, what.bytes, data);
    else
      transfer(team, what, own_group, data, other);
  });
  const bool alone = what.kind == Kind::send && (team.communicator().rank() ^ 1) >= team.size();
  if (what.kind == Kind::send) own.seconds /= 2;
  Measurement all = team.combined(std::span(&own, 1)).front();
  // A rank without a partner added nothing to the mean.
  std::array<double, 2> active{alone ? 0 : own.seconds, alone ? 0.0 : 1.0};
  team.sum(active);
  all.seconds = active[0] / std::max(active[1], 1.0);
  return all;
}

}  // namespace

std::map<std::string, Measurement> measure_communication(Team& team, const std::vector<int64_t>& bytes, double seconds,
                                                         const std::map<std::string, Measurement>& known) {
  std::map<std::string, Measurement> result;
  if (team.size() < 2 || bytes.empty()) return result;
  std::vector<int64_t> sizes = bytes;
  std::sort(sizes.begin(), sizes.end());
  std::vector<Transfer> wanted = essential_transfers(team.size(), sizes);
  const size_t essentials = wanted.size();
  for (const Transfer& more : transfers(team.size(), sizes)) wanted.push_back(more);
  const int64_t largest = sizes.back() + kFloat * team.size();
  Arena arena(largest), other(largest);
  const double deadline = team.elapsed() + seconds;
  int64_t groups_of = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Transfer& what = wanted[i];
    const std::string key = key_of(what);
    const double left = team.agreed(deadline - team.elapsed());
    if (left <= 0 && i >= essentials) break;
    if (team.agreed(known.count(key) + result.count(key) != 0 ? 1 : 0) != 0) continue;
    if (what.kind != Kind::send && groups_of != what.group_size) {
      team.use_groups(sibling_groups(team.size(), what.group_size));
      groups_of = what.group_size;
    }
    RepeatLimits limits;
    limits.seconds = std::max(left, 0.0) / static_cast<double>(wanted.size() - i);
    limits.batch_seconds = std::min(1e-3, limits.seconds / 5);
    result[key] = measure(team, what, limits, arena.data(), other.data());
  }
  return result;
}

}  // namespace foresail
