// Remembers the answers of another cost model.
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "planner/simulator/cost_model.h"

namespace foresail {
namespace {

class CachingCosts final : public CostModel {
 public:
  explicit CachingCosts(const CostModel& inner) : inner_(inner) {}

  Cost op_seconds(const OpInstance& op) const override {
    // The signature holds what changes the cost; element types beyond the first change bytes under mixed precision.
    std::string key = signature(op);
    for (const TensorType& input : op.inputs) key += static_cast<char>('0' + static_cast<int>(input.dtype));
    for (const TensorType& output : op.outputs) key += static_cast<char>('0' + static_cast<int>(output.dtype));
    const std::lock_guard lock(mutex_);
    const auto found = ops_.find(key);
    if (found != ops_.end()) return found->second;
    return ops_.emplace(std::move(key), inner_.op_seconds(op)).first->second;
  }
  Cost collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const override {
    const auto key = std::make_tuple(kind, bytes, span.size, span.per_node, span.sibling_groups_per_node);
    const std::lock_guard lock(mutex_);
    const auto found = collectives_.find(key);
    if (found != collectives_.end()) return found->second;
    return collectives_.emplace(key, inner_.collective_seconds(kind, bytes, span)).first->second;
  }
  Cost message_seconds(int64_t bytes, bool crosses_nodes) const override {
    return inner_.message_seconds(bytes, crosses_nodes);
  }
  double issue_seconds() const override { return inner_.issue_seconds(); }
  bool calibrated() const override { return inner_.calibrated(); }
  double common_spread() const override { return inner_.common_spread(); }
  std::string note() const override { return inner_.note(); }

 private:
  const CostModel& inner_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, Cost> ops_;
  mutable std::map<std::tuple<InstructionKind, int64_t, int64_t, int64_t, int64_t>, Cost> collectives_;
};

}  // namespace

std::unique_ptr<CostModel> make_caching_cost_model(const CostModel& inner) {
  return std::make_unique<CachingCosts>(inner);
}

}  // namespace foresail
