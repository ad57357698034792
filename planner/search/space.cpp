#include "planner/search/space.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "core/round_up.h"
#include "ops/op_table.h"
#include "planner/simulator/priced_program.h"
#include "program/compile.h"
#include "program/schedule.h"

namespace foresail {
namespace {

struct ScheduleChoice {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int64_t virtual_stages = 1;
};

/// The chunks per stage that a schedule has unless the user says otherwise.
int64_t usual_virtual_stages(ScheduleKind kind) {
  return kind == ScheduleKind::interleaved || kind == ScheduleKind::zb_v ? 2 : 1;
}

/// Lists the values of every key for one combination after another.
class Enumeration {
 public:
  Enumeration(const SearchRequest& request, int64_t devices) : request_(request), devices_(devices) {}

  Space run() {
    strategy_ = request_.fixed.strategy;  // keys that are not searched keep their fixed value or their default
    for (const int64_t tp : degrees("tp", request_.fixed.strategy.tp, devices_)) {
      for (const int64_t cp : context_degrees(devices_ / tp)) {
        for (const int64_t pp : degrees("pp", request_.fixed.strategy.pp, devices_ / tp / cp)) {
          strategy_.tp = tp, strategy_.cp = cp, strategy_.pp = pp, strategy_.dp = devices_ / tp / cp / pp;
          if (fixes("dp") && strategy_.dp != request_.fixed.strategy.dp) continue;
          for (const int64_t micro_batch : micro_batches()) {
            strategy_.micro_batch = micro_batch;
            add_variants();
          }
        }
      }
    }
    return std::move(space_);
  }

 private:
  bool fixes(const char* key) const { return request_.fixed.names(key); }

  /// Divisors of `rest`, or the fixed degree if it is one.
  std::vector<int64_t> degrees(const char* key, int64_t fixed, int64_t rest) const {
    if (!fixes(key)) return divisors(rest);
    return rest % fixed == 0 ? std::vector<int64_t>{fixed} : std::vector<int64_t>{};
  }

  std::vector<int64_t> context_degrees(int64_t rest) const {
    const bool varied = fixes("cp") || request_.job.sequence_length >= kLongSequence;
    return varied ? degrees("cp", request_.fixed.strategy.cp, rest) : std::vector<int64_t>{1};
  }

  std::vector<int64_t> micro_batches() const {
    if (fixes("micro_batch")) return {request_.fixed.strategy.micro_batch};
    const int64_t batch = request_.job.global_batch;
    // A batch that dp does not divide is one combination, refused by `legal` with its reason, unless it may be ragged.
    if (batch % strategy_.dp != 0 && !strategy_.ragged_batch) return {1};
    return divisors(divide_up(batch, strategy_.dp));
  }

  std::vector<ScheduleChoice> schedules() const {
    const Strategy& fixed = request_.fixed.strategy;
    const auto chunks = [&](ScheduleKind kind) {
      return fixes("virtual_stages") ? fixed.virtual_stages : usual_virtual_stages(kind);
    };
    if (fixes("schedule")) return {{fixed.schedule, chunks(fixed.schedule)}};
    if (fixes("virtual_stages") && fixed.virtual_stages > 1) return {{ScheduleKind::interleaved, fixed.virtual_stages}};
    std::vector<ScheduleChoice> choices = {{ScheduleKind::one_f_one_b, 1}};
    if (strategy_.pp == 1) return choices;
    const bool interleaves = !fixes("virtual_stages") && request_.model.layers >= 2 * strategy_.pp;
    if (interleaves) choices.push_back({ScheduleKind::interleaved, 2});
    choices.push_back({ScheduleKind::zb_h1, 1});
    return choices;
  }

  std::vector<int64_t> zero_stages() const {
    if (fixes("zero_stage")) return {request_.fixed.strategy.zero_stage};
    const bool shares = strategy_.data_ranks() > 1 || (request_.model.moe.experts > 0 && strategy_.expert_copies() > 1);
    return shares ? std::vector<int64_t>{0, 1, 3} : std::vector<int64_t>{0};
  }

  std::vector<bool> sequence_parallel() const {
    if (fixes("sequence_parallel")) return {request_.fixed.strategy.sequence_parallel};
    if (strategy_.tp > 1 && request_.model.moe.experts > 0) return {true};
    return strategy_.tp > 1 ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  std::vector<Recompute> recomputes() const {
    if (fixes("recompute")) return {request_.fixed.strategy.recompute};
    // Where rules name every layer themselves the preset says nothing; they come with what they were fixed with.
    return {Recompute::none, Recompute::selective, Recompute::full};
  }

  /// Degrees of experts that fit the stage's ranks: (ep, etp).
  std::vector<std::pair<int64_t, int64_t>> expert_degrees() const {
    const int64_t experts = request_.model.moe.experts, ranks = strategy_.dp * strategy_.cp * strategy_.tp;
    const Strategy& fixed = request_.fixed.strategy;
    if (experts == 0) return {{fixed.ep, fixed.etp}};
    std::vector<std::pair<int64_t, int64_t>> result;
    for (const int64_t ep : degrees("ep", fixed.ep, ranks)) {
      if (experts % ep != 0) continue;
      for (const int64_t etp : degrees("etp", fixed.etp, ranks / ep)) {
        // An expert is narrow: more ranks than a tensor group share it only where somebody asks for that.
        if (etp <= strategy_.tp || fixes("etp")) result.emplace_back(ep, etp);
      }
    }
    if (result.empty()) result.emplace_back(fixed.ep, fixed.etp);  // refused by `legal`, with its reason
    return result;
  }

  void add_variants() {
    for (const auto& [ep, etp] : expert_degrees()) {
      strategy_.ep = ep, strategy_.etp = etp;
      add_variants_of_degrees();
    }
  }

  void add_variants_of_degrees() {
    std::set<std::string> reasons;
    for (const ScheduleChoice& schedule : schedules()) {
      strategy_.schedule = schedule.kind, strategy_.virtual_stages = schedule.virtual_stages;
      for (const bool sequence : sequence_parallel()) {
        strategy_.sequence_parallel = sequence;
        for (const int64_t zero : zero_stages()) {
          strategy_.zero_stage = zero;
          for (const Recompute recompute : recomputes()) {
            strategy_.recompute = recompute;
            const auto refusals = legal(request_.model, request_.job, strategy_);
            if (refusals.empty()) space_.strategies.push_back(strategy_);
            reasons.insert(refusals.begin(), refusals.end());
          }
        }
      }
    }
    for (const std::string& reason : reasons) ++space_.illegal[reason];
  }

  const SearchRequest& request_;
  int64_t devices_;
  Strategy strategy_;
  Space space_;
};

}  // namespace

std::vector<int64_t> divisors(int64_t value) {
  std::vector<int64_t> small, large;
  for (int64_t d = 1; d * d <= value; ++d) {
    if (value % d != 0) continue;
    small.push_back(d);
    if (d != value / d) large.push_back(value / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

Space space_of(const SearchRequest& request, int64_t devices) { return Enumeration(request, devices).run(); }

int64_t micro_batches_of(const Job& job, const Strategy& strategy) {
  return divide_up(job.global_batch, strategy.dp * strategy.micro_batch);
}

Strategy plain_variant(const Strategy& strategy, bool has_experts) {
  Strategy plain = strategy;
  plain.schedule = ScheduleKind::one_f_one_b;
  plain.virtual_stages = 1;
  if (!has_experts) plain.sequence_parallel = false;
  plain.zero_stage = 0, plain.zero_group = 0;
  plain.recompute = Recompute::none;
  plain.recompute_layers.clear();
  plain.overlap = false;
  plain.bucket_bytes = 0;
  plain.reduce_dtype.reset();
  plain.accumulate_dtype.reset();
  return plain;
}

/// What stage 0 holds depends on which layers it has and on tp alone.
const MemoryBound::Stage& MemoryBound::stage_of(const Strategy& strategy) {
  Strategy whole = strategy;  // no shard, no micro-batch: what differs between keys must differ in this text
  whole.zero_stage = 0, whole.zero_group = 0;
  whole.dp = 1, whole.cp = 1, whole.ep = 1, whole.etp = 1, whole.micro_batch = 1;
  whole.sequence_parallel = false;
  whole.recompute = Recompute::none;
  whole.recompute_layers.clear();
  const auto [at, is_new] = stages_.try_emplace(to_text(whole));
  Stage& stage = at->second;
  if (!is_new) return stage;
  for (const ParameterSlice& slice : rank_slices(model_, whole, {}).parameters) {
    if (!slice.second_holder) (slice.of_experts ? stage.experts : stage.parameters) += slice.elements();
  }
  const std::vector<StageLayers> layers = stage_layers(model_.layers, strategy);
  for (int32_t chunk = 0; chunk < strategy.virtual_stages; ++chunk) {
    stage.chunk_layers.push_back(layers.at(static_cast<size_t>(virtual_stage_of(strategy, {0, chunk}))).count);
  }
  return stage;
}

const std::vector<int32_t>& MemoryBound::slots_of(const Strategy& strategy, int64_t micro_batches) {
  const std::string key = fmt::format("{}/{}/{}/{}", static_cast<int>(strategy.schedule), strategy.pp,
                                      strategy.virtual_stages, micro_batches);
  const auto [at, is_new] = slots_.try_emplace(key);
  if (is_new) at->second = training_schedule(strategy, 0, micro_batches).slots;
  return at->second;
}

int64_t MemoryBound::bytes(const Strategy& strategy) {
  const Precision precision = precision_of(job_);
  const Stage& stage = stage_of(strategy);
  const int64_t shard = strategy.shard_ranks();
  const auto segment = [&](int64_t bytes_per_element, int64_t cut_from) {
    const bool cut = strategy.zero_stage >= cut_from;
    const int64_t experts = stage.experts / (strategy.ep * strategy.etp);
    return (stage.parameters / (cut ? shard : 1) + experts / (cut ? strategy.expert_shard_ranks() : 1)) *
           bytes_per_element;
  };
  const int64_t state = 2 * size_of(precision.moment) + (precision.master_copy ? size_of(DType::f32) : 0);
  const DType gradient = strategy.accumulate_dtype.value_or(precision.gradient);
  int64_t bytes = segment(size_of(precision.parameter), 3) + segment(size_of(gradient), 2) + segment(state, 1);

  const int64_t rows = strategy.micro_batch * job_.sequence_length / strategy.cp;
  const int64_t held_rows = strategy.sequence_parallel ? rows / strategy.tp : rows;
  const int64_t layer_input = held_rows * model_.hidden * size_of(precision.activation);
  const auto& slots = slots_of(strategy, micro_batches_of(job_, strategy));
  for (size_t chunk = 0; chunk < stage.chunk_layers.size(); ++chunk) {
    bytes += slots.at(chunk) * stage.chunk_layers[chunk] * layer_input;
  }
  return bytes;
}

double product_seconds(const Program& program, const CostModel& costs) {
  const std::vector<int64_t> executions = block_executions(program);
  double seconds = 0;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    if (executions[b] == 0) continue;
    for (const Instruction& instruction : program.blocks[b].instructions) {
      if (instruction.kind != InstructionKind::op) continue;
      const OpClass op_class = info(instruction.op).op_class;
      if (op_class != OpClass::matrix_product && op_class != OpClass::attention) continue;
      seconds +=
          costs.op_seconds(op_instance(program.blocks[b], instruction)).seconds * static_cast<double>(executions[b]);
    }
  }
  return seconds;
}

double busy_seconds(const Program& program, const CostModel& costs, int64_t devices_per_node) {
  const std::vector<int64_t> executions = block_executions(program);
  double seconds = 0;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    if (executions[b] == 0) continue;
    const Block& block = program.blocks[b];
    const std::vector<Cost> priced = price_block(program, block, costs, devices_per_node);
    double once = 0;
    for (size_t i = 0; i < priced.size(); ++i) {
      if (block.instructions[i].queue == Queue::compute) once += priced[i].seconds;
    }
    seconds += once * static_cast<double>(executions[b]);
  }
  return seconds;
}

}  // namespace foresail
