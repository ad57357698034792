#include "runtime/executor/step_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/error.h"

namespace foresail {
namespace {

void add_calls(const Program& program, const ScheduleEntry& entry, std::vector<ExecutedCall>& planned) {
  const std::vector<Call>& calls = calls_of(program, entry);
  for (size_t i = 0; i < calls.size(); ++i) {
    ensure(calls[i].block >= 0 && calls[i].block < static_cast<int32_t>(program.blocks.size()), "a call names a block");
    if (!skips(entry, calls[i])) planned.push_back({&entry, &calls[i], static_cast<int32_t>(i)});
  }
}

/// Where an executed instruction runs.
struct Place {
  uint8_t queue = 0;
  int32_t item = 0;
};

/// By queue: how many of its items must have finished.
using Progress = std::array<int32_t, kQueueCount>;

/// What instructions share beside bytes: a group's communicator, a channel's outstanding sends.
class Resources {
 public:
  /// The last use before this one; a place in the same queue if there was none.
  Place use(const BoundInstruction& instruction, const Place& here) {
    if (instruction.kind == InstructionKind::op) return here;
    Place& last = last_.try_emplace({is_collective(instruction.kind), key_of(instruction)}, here).first->second;
    return std::exchange(last, here);
  }

 private:
  static int32_t key_of(const BoundInstruction& instruction) {
    return is_collective(instruction.kind) ? instruction.group : instruction.channel;
  }
  std::map<std::pair<bool, int32_t>, Place> last_;
};

class Planner {
 public:
  Planner(const std::vector<ExecutedCall>& calls, const std::vector<BoundBlock>& blocks,
          const Dependencies& dependencies)
      : calls_(calls), blocks_(blocks), dependencies_(dependencies) {
    plan_.work.resize(kQueueCount);
  }

  QueuePlan plan() {
    ensure(calls_.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "a step has below 2^31 calls");
    for (size_t call = 0; call < calls_.size(); ++call) {
      const auto& instructions = blocks_[static_cast<size_t>(calls_[call].call->block)].instructions;
      for (size_t i = 0; i < instructions.size(); ++i) {
        add(static_cast<int32_t>(call), static_cast<int32_t>(i), instructions[i]);
      }
    }
    ensure(next_dependency_ == dependencies_.waits.size(), "dependencies are those of this Program");
    return std::move(plan_);
  }

 private:
  void add(int32_t call, int32_t index, const BoundInstruction& instruction) {
    const auto queue = static_cast<size_t>(instruction.queue);
    auto& items = plan_.items[queue];
    const Place here{static_cast<uint8_t>(queue), static_cast<int32_t>(items.size())};
    Progress needed{};
    const auto need = [&](const Place& place) { needed[place.queue] = std::max(needed[place.queue], place.item + 1); };
    const auto number = static_cast<int64_t>(places_.size());
    for (; next_dependency_ < dependencies_.waits.size(); ++next_dependency_) {
      const Dependency& dependency = dependencies_.waits[next_dependency_];
      if (dependency.waiting != number) break;
      ensure(dependency.awaited >= 0 && dependency.awaited < number, "an instruction waits for an earlier one");
      need(places_[static_cast<size_t>(dependency.awaited)]);
    }
    need(resources_.use(instruction, here));
    wait(queue, needed);
    items.push_back({call, index});
    places_.push_back(here);
  }

  /// Adds the waits that the queue has not already waited for.
  void wait(size_t queue, const Progress& needed) {
    QueueWork& work = plan_.work[queue];
    for (size_t other = 0; other < kQueueCount; ++other) {
      if (other == queue || needed[other] <= waited_[queue][other]) continue;
      waited_[queue][other] = needed[other];
      work.waits.push_back({static_cast<int32_t>(other), needed[other]});
    }
    work.first_wait.push_back(static_cast<int32_t>(work.waits.size()));
  }

  const std::vector<ExecutedCall>& calls_;
  const std::vector<BoundBlock>& blocks_;
  const Dependencies& dependencies_;
  size_t next_dependency_ = 0;
  std::vector<Place> places_;  // by number of the executed instruction
  std::array<Progress, kQueueCount> waited_{};
  Resources resources_;
  QueuePlan plan_;
};

}  // namespace

std::vector<ExecutedCall> plan_calls(const Program& program) {
  std::vector<ExecutedCall> planned;
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.phase != Phase::startup) add_calls(program, entry, planned);  // numbered as program/dependencies.h says
  }
  return planned;
}

std::vector<ExecutedCall> plan_startup(const Program& program, const ScheduleEntry& entry) {
  std::vector<ExecutedCall> planned;
  add_calls(program, entry, planned);
  return planned;
}

bool uses_queues_besides_compute(const Program& program) {
  return std::any_of(program.blocks.begin(), program.blocks.end(), [](const Block& block) {
    return std::any_of(block.instructions.begin(), block.instructions.end(),
                       [](const Instruction& instruction) { return instruction.queue != Queue::compute; });
  });
}

QueuePlan plan_queues(const std::vector<ExecutedCall>& calls, const std::vector<BoundBlock>& blocks,
                      const Dependencies& dependencies) {
  return Planner(calls, blocks, dependencies).plan();
}

}  // namespace foresail
