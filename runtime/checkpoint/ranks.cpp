#include "runtime/checkpoint/ranks.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <new>

#include "core/error.h"

namespace foresail {
namespace {

constexpr char kSeparator = '\x1f';
constexpr char kDone = '+', kFailed = '-';

// A failure as text: "-<exit>US thing US cause US mend".
std::string failure_text(const Error& error) {
  return kFailed + std::to_string(static_cast<int>(error.exit())) + kSeparator + error.thing() + kSeparator +
         error.cause() + kSeparator + error.mend();
}

[[noreturn]] void throw_failure(const std::string& text, int rank, bool name_rank) {
  std::vector<std::string> fields(1);
  for (const char c : text.substr(1)) {
    if (c == kSeparator) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  ensure(fields.size() == 4, "a failure has four fields");
  const std::string prefix = name_rank ? "rank " + std::to_string(rank) + ": " : "";
  throw Error(static_cast<Exit>(std::stoi(fields[0])), prefix + fields[1], fields[2], fields[3]);
}

std::string result_of(const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const Error& error) {
    return failure_text(error);
  } catch (const std::bad_alloc&) {
    return failure_text(Error(Exit::environment_failed, "checkpoint", "out of memory", "free memory on this host"));
  } catch (const std::exception& error) {
    return failure_text(Error(Exit::environment_failed, "checkpoint", error.what(), "check the disk that holds it"));
  }
}

}  // namespace

std::vector<std::string> gather_texts(const CheckpointRanks& ranks, const std::string& text) {
  if (ranks.size() == 1) return {text};
  ensure(text.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()), "a gathered text is below 2 GiB");
  Communicator& communicator = *ranks.communicator;
  const auto size = static_cast<size_t>(ranks.size());
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> lengths(size);
  communicator.all_gather(&length, lengths.data(), 1, DType::i32, ranks.world);
  // One broadcast per rank: no padding to the longest, and at most one copy of every text.
  std::vector<std::string> texts(size);
  for (size_t rank = 0; rank < size; ++rank) {
    texts[rank] = static_cast<int>(rank) == ranks.rank() ? text : std::string(static_cast<size_t>(lengths[rank]), '\0');
    if (lengths[rank] > 0) {
      communicator.broadcast(texts[rank].data(), lengths[rank], static_cast<int>(rank), ranks.world);
    }
  }
  return texts;
}

std::string share_text(const CheckpointRanks& ranks, const std::string& text) {
  return gather_texts(ranks, ranks.rank() == 0 ? text : std::string()).front();
}

std::vector<std::string> all_do(const CheckpointRanks& ranks, const std::function<std::string()>& work) {
  std::vector<std::string> results = gather_texts(ranks, result_of(work));
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].front() == kFailed) throw_failure(results[rank], static_cast<int>(rank), results.size() > 1);
    results[rank].erase(0, 1);
  }
  return results;
}

std::string first_rank_does(const CheckpointRanks& ranks, const std::function<std::string()>& work) {
  return all_do(ranks, [&] { return ranks.rank() == 0 ? work() : std::string(); }).front();
}

Rectangle rectangle_of(const ParameterSlice& slice) {
  return {slice.row_begin, slice.row_end, slice.column_begin, slice.column_end};
}

std::string key_of(const ParameterSlice& slice) {
  std::string key;
  for (const int64_t number : {slice.row_begin, slice.row_end, slice.column_begin, slice.column_end}) {
    key += std::to_string(number) + ' ';
  }
  return key + slice.tensor;
}

std::vector<bool> owned_slices(const CheckpointRanks& ranks, std::span<const ParameterSlice> slices) {
  std::string held;
  for (const ParameterSlice& slice : slices) {
    if (!slice.second_holder) held += key_of(slice) + '\n';
  }
  const std::vector<std::string> all = gather_texts(ranks, held);
  std::map<std::string_view, int> owner;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::string_view rest = all[static_cast<size_t>(rank)];
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      owner.emplace(rest.substr(0, end), rank);
      rest.remove_prefix(end + 1);
    }
  }
  std::vector<bool> owned;
  for (const ParameterSlice& slice : slices) {
    const auto found = owner.find(key_of(slice));
    owned.push_back(!slice.second_holder && slice.elements() > 0 && found != owner.end() &&
                    found->second == ranks.rank());
    if (owned.back()) owner.erase(found);  // a rank that holds a rectangle twice writes it once
  }
  return owned;
}

}  // namespace foresail
