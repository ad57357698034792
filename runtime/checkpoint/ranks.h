// What ranks must agree on while they save and load together: texts of any length gathered over a Communicator, and
// failures that every rank hears of instead of waiting for ever.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "program/program.h"
#include "runtime/checkpoint/tensor_digest.h"

namespace foresail {

/// All ranks of a run. Without a communicator: the only rank.
struct CheckpointRanks {
  Communicator* communicator = nullptr;
  GroupId world = 0;  ///< the group of all ranks

  int rank() const { return communicator == nullptr ? 0 : communicator->rank(); }
  int size() const { return communicator == nullptr ? 1 : communicator->size(); }
};

/// The texts of all ranks, in order of rank, on every rank. Collective.
std::vector<std::string> gather_texts(const CheckpointRanks& ranks, const std::string& text);

/// Rank 0's text on every rank. Collective.
std::string share_text(const CheckpointRanks& ranks, const std::string& text);

/// Every rank does `work`; returns the texts of all ranks. If it throws anywhere, every rank throws the error of the lowest
/// such rank (naming that rank when there are several). Collective: `work` itself must not communicate.
std::vector<std::string> all_do(const CheckpointRanks& ranks, const std::function<std::string()>& work);

/// As all_do, but only rank 0 works; returns its text.
std::string first_rank_does(const CheckpointRanks& ranks, const std::function<std::string()>& work);

Rectangle rectangle_of(const ParameterSlice& slice);

/// "row_begin row_end column_begin column_end tensor": the same on all holders of a rectangle.
std::string key_of(const ParameterSlice& slice);

/// For each slice of one segment whether this rank is its owner: of all holders of the same rectangle of the same tensor
/// (replicas over data and tensor ranks) the lowest rank owns it. Second holders of tied weights own nothing: ZeRO may
/// cut theirs at other places, while the first holders' rectangles cover the tensor once. Collective.
std::vector<bool> owned_slices(const CheckpointRanks& ranks, std::span<const ParameterSlice> slices);

}  // namespace foresail
