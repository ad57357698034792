// What things cost on a machine: the only way in which the planner knows about hardware.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/op.h"
#include "program/program.h"
#include "spec/machine.h"
#include "spec/target.h"

namespace foresail {

/// A duration with the half-width of its 80 % interval, relative.
struct Cost {
  double seconds = 0;
  double spread = 0;
};

/// Half-width of the 80 % interval of a measured median: its samples' half-range over 10-90 % shrinks with their number
/// as the standard error of a median does, sqrt(pi / 2 / n).
double median_spread(const Measurement& measured);

/// Where the ranks of a communicating group sit.
struct GroupSpan {
  int64_t size = 1;                     ///< ranks
  int64_t per_node = 1;                 ///< of them in one node
  int64_t sibling_groups_per_node = 1;  ///< groups that use the node's links at the same time
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  /// Issue included: the time by which the op keeps its queue from the next one.
  virtual Cost op_seconds(const OpInstance& op) const = 0;
  /// Bytes as communication_bytes counts them: all_gather's gathered output, reduce_scatter's and all_to_all's whole input.
  virtual Cost collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const = 0;
  virtual Cost message_seconds(int64_t bytes, bool crosses_nodes) const = 0;
  /// Host time to post a message without waiting for it.
  virtual double issue_seconds() const = 0;
  /// Whether every constant was measured or fitted for this device and stack.
  virtual bool calibrated() const = 0;
  /// Relative half-width of the part of the error that all costs share (80 % interval): a machine that is slower today,
  /// a constant that is off. It does not average out over ops.
  virtual double common_spread() const = 0;
  /// What a reader of the prediction should know about these costs ("nothing was measured with 3 ranks: ..."), the ones that
  /// were asked for so far included; empty: nothing.
  virtual std::string note() const { return ""; }
};

/// Datasheet figures and published constants (spec/machines, spec/stacks). Throws bad_input if the machine lacks a
/// figure that the model needs.
std::unique_ptr<CostModel> make_catalogue_cost_model(const Machine& machine, const Stack& stack);
/// Measured tables for `ranks` active ranks of `threads` threads, interpolated over shapes; groups larger than measured
/// are extrapolated and their spread widened. A kind that the nearest table lacks comes from the next one that has it, and
/// what merely moves or adds elements from the measured copy bandwidth, each with a wider spread and named by note().
/// Throws bad_input if the machine holds no table, and when asked for a kind of operator or collective of which nothing was
/// measured.
std::unique_ptr<CostModel> make_profiled_cost_model(const Machine& machine, int ranks, int threads);
/// The same costs, each asked for once: searches price the same op in many Programs. `inner` must outlive it.
std::unique_ptr<CostModel> make_caching_cost_model(const CostModel& inner);

}  // namespace foresail
