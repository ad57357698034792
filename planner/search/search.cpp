#include "planner/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "core/human.h"
#include "core/round_up.h"
#include "planner/search/evaluate.h"
#include "planner/search/recompute_mix.h"
#include "planner/search/space.h"
#include "program/compile.h"
#include "spec/batch_ramp.h"

namespace foresail {
namespace {

constexpr const char* kOutOfMemory = "out of memory";
constexpr const char* kNotPriced = "without a price on this machine";
constexpr const char* kOverDeadline = "over the deadline";
constexpr const char* kOverBudget = "over the budget";
constexpr size_t kNearestTried = 12;  // strategies of least memory bound that are compiled to find the nearest plan

/// What a plan on this device count is worth: smaller is better, proportional to the mean step of the run (for throughput
/// to the step of the job's batch), so that a bound on the step is a bound on the objective.
class Worth {
 public:
  Worth(const SearchRequest& request, const Evaluator& evaluator, int64_t devices)
      : job_(request.job), stages_(batch_stages(request.job)), of_run_(request.objective != Objective::throughput) {
    // Goodput depends on devices and checkpoints, not on the step time.
    const double goodput = evaluator.budget_for({1, 1, 1}).goodput.value_or(1);
    switch (request.objective) {
      case Objective::time: factor_ = 1 / goodput; break;
      case Objective::cost: factor_ = static_cast<double>(devices) / goodput; break;
      case Objective::throughput: factor_ = 1; break;
    }
  }
  double of(const Candidate& plan) const {
    return factor_ * (of_run_ ? plan.mean_step.seconds : plan.predicted.step_seconds);
  }
  /// Of any plan of this strategy whose step takes `step_seconds` at least.
  double least(double step_seconds, const Strategy& strategy) const {
    return factor_ * step_seconds * (of_run_ ? mean_share(strategy) : 1);
  }

 private:
  /// A lower bound on the mean step over the full one: of a ramp's steps what is done per micro-batch shrinks with them,
  /// and the rest does not.
  double mean_share(const Strategy& strategy) const {
    const auto total = static_cast<double>(steps_of(job_));
    if (job_.batch_ramp.empty() || total == 0) return 1;
    const int64_t round = strategy.dp * strategy.micro_batch;
    double micro_batches = 0;
    for (const BatchStage& stage : stages_) {
      micro_batches += static_cast<double>(stage.steps) * static_cast<double>(divide_up(stage.global_batch, round));
    }
    return micro_batches / total / static_cast<double>(micro_batches_of(job_, strategy));
  }

  const Job& job_;
  std::vector<BatchStage> stages_;
  bool of_run_ = true;
  double factor_ = 1;
};

struct Ranked {
  double worth = 0;
  Candidate candidate;
};

/// Ties go to less memory, fewer devices, then the simpler strategy.
auto order_of(const Ranked& plan) {
  const Strategy& s = plan.candidate.strategy;
  return std::make_tuple(plan.worth, plan.candidate.predicted.peak_bytes, s.devices(), s.pp, s.tp, s.cp, s.ep, s.etp,
                         s.recompute, s.virtual_stages, s.schedule, s.zero_stage, s.sequence_parallel, s.micro_batch,
                         s.recompute_layers.size());
}
bool better(const Ranked& a, const Ranked& b) { return order_of(a) < order_of(b); }

/// Bounds on the steps of all variants of the same degrees and micro-batch, from the products of the plain one.
class ProductBound {
 public:
  ProductBound(const SearchRequest& request, const Evaluator& evaluator) : request_(request), evaluator_(evaluator) {}

  /// 0: nothing is known (the plain variant is not legal, or stages were sized by hand).
  double seconds(const Strategy& strategy) {
    const ExpertSpec& moe = request_.model.moe;
    const Strategy plain = plain_variant(strategy, moe.experts > 0);
    // Stage 0 stands for the fullest one only where all layers are alike.
    const bool alike = moe.experts == 0 || moe.first_dense_layers == 0;
    if (!plain.stage_layers.empty() || !alike) return 0;
    const auto [at, is_new] = known_.try_emplace(to_text(plain), 0.0);
    if (is_new && legal(request_.model, request_.job, plain).empty()) at->second = of_plain(plain);
    return at->second;
  }

 private:
  double of_plain(const Strategy& plain) const {
    try {
      return product_seconds(evaluator_.compile_stage(plain, 0), evaluator_.costs());
    } catch (const Error& error) {
      if (error.exit() != Exit::bad_input) throw;
      return 0;  // a product without a price bounds nothing
    }
  }

  const SearchRequest& request_;
  const Evaluator& evaluator_;
  std::map<std::string, double> known_;
};

/// What the strategies of one device count share.
struct Count {
  const Evaluator& evaluator;
  const Worth& worth;
  RecomputeMixer& mixer;
};

class Search {
 public:
  explicit Search(const SearchRequest& request) : request_(request) {}
  SearchResult run();

 private:
  void visit_count(int64_t devices);
  void visit(const Strategy& strategy, const Count& count);
  void visit_mix(const Strategy& strategy, const Program& refused, const Count& count);
  std::optional<Ranked> mixed(const Strategy& strategy, const Count& count);
  Program compiled(const Strategy& strategy, size_t stage, const Evaluator& evaluator);
  bool bounded_by(const Strategy& strategy, double worth);
  bool changes_nothing(const Strategy& strategy, double worth) const;
  bool cannot_win(double worth) const;
  const char* limit_of(const Ranked& plan);
  void keep(Ranked plan);
  void fill_frontier();
  void explain_failure();
  void explain_memory();
  int64_t ceiling(int64_t devices) const;

  const SearchRequest& request_;
  SearchResult result_;
  std::vector<Ranked> best_;  // of all device counts, at most `top`
  std::map<int64_t, Ranked> best_of_count_;
  std::vector<std::pair<int64_t, Strategy>> too_large_;  // memory bound or peak, strategy
  std::optional<Ranked> nearest_over_limit_;
  std::optional<Error> not_priced_;  // the first
  // With full recompute, by stage, where the latest mix has compiled it: it is visited soon after.
  Strategy full_;
  std::vector<std::optional<Program>> full_stages_;
};

int64_t Search::ceiling(int64_t devices) const {
  const int64_t known = memory_ceiling(request_, devices);
  return known > 0 ? known : std::numeric_limits<int64_t>::max();
}

SearchResult Search::run() {
  const auto start = std::chrono::steady_clock::now();
  for (const int64_t devices : request_.device_counts) visit_count(devices);
  for (Ranked& plan : best_) result_.plans.push_back(std::move(plan.candidate));
  if (result_.plans.empty()) explain_failure();
  fill_frontier();
  result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(result_);
}

void Search::visit_count(int64_t devices) {
  Space space = space_of(request_, devices);
  for (const auto& [reason, count] : space.illegal) result_.illegal[reason] += count;
  result_.strategies += static_cast<int64_t>(space.strategies.size());
  if (space.strategies.empty()) return;
  const Evaluator evaluator(request_.model, request_.job, request_.machine, request_.stack, devices);
  const Worth worth(request_, evaluator, devices);
  RecomputeMixer mixer(request_.model, request_.job, request_.machine, evaluator);
  MemoryBound memory(request_.model, request_.job);
  ProductBound products(request_, evaluator);
  std::vector<std::pair<double, const Strategy*>> fitting;  // bound on the step
  for (const Strategy& strategy : space.strategies) {
    const int64_t least = request_.prune ? memory.bytes(strategy) + evaluator.target().framework_bytes : 0;
    if (least > ceiling(devices)) {
      ++result_.refused[kOutOfMemory];
      too_large_.emplace_back(least, strategy);
      continue;
    }
    fitting.emplace_back(request_.prune ? products.seconds(strategy) : 0, &strategy);
  }
  // What may be fastest comes first, so that the others can be dropped without being compiled.
  std::stable_sort(fitting.begin(), fitting.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [least, strategy] : fitting) {
    if (request_.prune && bounded_by(*strategy, worth.least(least, *strategy))) continue;
    try {
      visit(*strategy, {evaluator, worth, mixer});
    } catch (const Error& error) {
      if (error.exit() != Exit::bad_input) throw;
      // Something that it does was never measured. Others may have a price; if none has, this is the answer.
      ++result_.refused[kNotPriced];
      if (!not_priced_) not_priced_ = error;
    }
  }
}

/// Whether a plan worth no more than this is neither among the best nor the best of its device count.
bool Search::changes_nothing(const Strategy& strategy, double worth) const {
  const auto own = best_of_count_.find(strategy.devices());
  const bool leads_count = own == best_of_count_.end() || worth <= own->second.worth;
  return !leads_count && cannot_win(worth);
}

/// The same for a strategy of the space; counts it.
bool Search::bounded_by(const Strategy& strategy, double worth) {
  if (!changes_nothing(strategy, worth)) return false;
  ++result_.bounded;
  return true;
}

/// The ends first: they hold embedding and head, and tell most about memory and time.
std::vector<size_t> visiting_order(int64_t stages) {
  std::vector<size_t> order = {0};
  if (stages > 1) order.push_back(static_cast<size_t>(stages) - 1);
  for (size_t stage = 1; stage + 1 < static_cast<size_t>(stages); ++stage) order.push_back(stage);
  return order;
}

/// A stage's Program; taken over where a mix has compiled it.
Program Search::compiled(const Strategy& strategy, size_t stage, const Evaluator& evaluator) {
  if (stage < full_stages_.size() && full_stages_[stage] && strategy == full_) {
    Program program = std::move(*full_stages_[stage]);
    full_stages_[stage].reset();
    return program;
  }
  return evaluator.compile_stage(strategy, static_cast<int>(stage));
}

/// Compiles stage after stage; the first that does not fit or shows that the step is too long ends it.
void Search::visit(const Strategy& strategy, const Count& count) {
  std::vector<Program> stages(static_cast<size_t>(strategy.pp));
  for (const size_t stage : visiting_order(strategy.pp)) {
    stages[stage] = compiled(strategy, stage, count.evaluator);
    const Program& program = stages[stage];
    const int64_t peak = program.arena.bytes + count.evaluator.target().framework_bytes;
    if (peak > ceiling(strategy.devices())) {
      ++result_.refused[kOutOfMemory];
      too_large_.emplace_back(peak, strategy);
      visit_mix(strategy, program, count);
      return;
    }
    const bool is_end = stage == 0 || stage + 1 == stages.size();
    if (!request_.prune || !is_end) continue;
    const double least = busy_seconds(program, count.evaluator.costs(), request_.machine.devices_per_node);
    if (bounded_by(strategy, count.worth.least(least, strategy))) return;
  }
  Ranked plan;
  plan.candidate = count.evaluator.play(strategy, stages, false, nullptr);
  plan.worth = count.worth.of(plan.candidate);
  ++result_.simulated;
  if (const int64_t peak = plan.candidate.predicted.peak_bytes; peak > ceiling(strategy.devices())) {
    ++result_.refused[kOutOfMemory];  // a smaller step of the batch ramp is what does not fit
    too_large_.emplace_back(peak, strategy);
    return;
  }
  if (const char* limit = limit_of(plan); limit != nullptr) {
    ++result_.refused[limit];
    return;
  }
  ++result_.evaluated;
  keep(std::move(plan));
}

/// Where nothing is recomputed and that does not fit, a mix of choices may be what is fastest and fits. `refused`: the stage
/// that did not fit; whatever is recomputed comes on top of its work.
void Search::visit_mix(const Strategy& strategy, const Program& refused, const Count& count) {
  const bool is_free = strategy.recompute == Recompute::none && !request_.fixed.names("recompute") &&
                       !request_.fixed.names("recompute_layers");
  if (!is_free) return;
  if (request_.prune) {
    const double least = busy_seconds(refused, count.evaluator.costs(), request_.machine.devices_per_node);
    if (changes_nothing(strategy, count.worth.least(least, strategy))) return;
  }
  std::optional<Ranked> plan = mixed(strategy, count);
  if (!plan) return;
  ++result_.mixed;
  if (limit_of(*plan) == nullptr) keep(std::move(*plan));
}

/// None if full recompute does not fit either, if a bound shows that the mix changes nothing, or if it is a preset.
std::optional<Ranked> Search::mixed(const Strategy& strategy, const Count& count) {
  const int64_t arena_bytes = ceiling(strategy.devices()) - count.evaluator.target().framework_bytes;
  full_ = strategy;
  full_.recompute = Recompute::full;
  full_stages_.assign(static_cast<size_t>(strategy.pp), std::nullopt);
  std::vector<RecomputeRule> rules;
  std::vector<Program> stages(static_cast<size_t>(strategy.pp));
  for (const size_t stage : visiting_order(strategy.pp)) {
    const Program& smallest =
        full_stages_[stage].emplace(count.evaluator.compile_stage(full_, static_cast<int>(stage)));
    if (smallest.arena.bytes > arena_bytes) return std::nullopt;
    StageMix mix = count.mixer.mix(strategy, smallest, arena_bytes);
    rules.insert(rules.end(), mix.rules.begin(), mix.rules.end());
    stages[stage] = std::move(mix.program);
    const bool is_end = stage == 0 || stage + 1 == stages.size();
    if (!request_.prune || !is_end) continue;
    const double least = busy_seconds(stages[stage], count.evaluator.costs(), request_.machine.devices_per_node);
    if (changes_nothing(strategy, count.worth.least(least, strategy))) return std::nullopt;
  }
  Strategy mix = strategy;
  mix.recompute_layers = joined(std::move(rules));
  if (is_preset(mix.recompute_layers, request_.model.layers)) return std::nullopt;
  Ranked plan;
  plan.candidate = count.evaluator.play(mix, stages, false, nullptr);
  plan.worth = count.worth.of(plan.candidate);
  if (plan.candidate.predicted.arena_bytes > arena_bytes) return std::nullopt;
  return plan;
}

bool Search::cannot_win(double worth) const {
  return static_cast<int64_t>(best_.size()) >= request_.top && worth > best_.back().worth;
}

/// The limit that a plan misses, null if none; remembers the plan that misses by least.
const char* Search::limit_of(const Ranked& plan) {
  const Budget& budget = plan.candidate.budget;
  const char* reason = nullptr;
  double excess = 0;
  if (request_.deadline_seconds > 0 && budget.train_seconds && *budget.train_seconds > request_.deadline_seconds) {
    reason = kOverDeadline, excess = *budget.train_seconds / request_.deadline_seconds;
  } else if (request_.budget_usd > 0 && budget.usd && *budget.usd > request_.budget_usd) {
    reason = kOverBudget, excess = *budget.usd / request_.budget_usd;
  }
  if (reason == nullptr) return nullptr;
  if (!nearest_over_limit_ || excess < nearest_over_limit_->worth) nearest_over_limit_ = Ranked{excess, plan.candidate};
  return reason;
}

void Search::keep(Ranked plan) {
  const auto [own, is_first] = best_of_count_.try_emplace(plan.candidate.strategy.devices(), plan);
  if (!is_first && better(plan, own->second)) own->second = plan;
  const auto at = std::upper_bound(best_.begin(), best_.end(), plan, better);
  best_.insert(at, std::move(plan));
  if (static_cast<int64_t>(best_.size()) > request_.top) best_.pop_back();
}

void Search::fill_frontier() {
  const FrontierPoint* previous = nullptr;
  result_.frontier.reserve(best_of_count_.size());
  for (const auto& [devices, plan] : best_of_count_) {
    const Prediction& predicted = plan.candidate.predicted;
    FrontierPoint point;
    point.devices = devices;
    point.strategy = plan.candidate.strategy;
    point.step_seconds = predicted.step_seconds;
    point.tokens_per_second_per_device = predicted.tokens_per_second_per_device;
    point.train_seconds = plan.candidate.budget.train_seconds;
    point.usd = plan.candidate.budget.usd;
    const double baseline = previous == nullptr ? predicted.tokens_per_second_per_device
                                                : result_.frontier.front().tokens_per_second_per_device;
    point.efficiency = predicted.tokens_per_second_per_device / baseline;
    if (previous != nullptr) {
      const double before = previous->tokens_per_second_per_device * static_cast<double>(previous->devices);
      point.marginal_efficiency =
          (predicted.tokens_per_second - before) / static_cast<double>(devices - previous->devices) / baseline;
    }
    result_.frontier.push_back(point);
    previous = &result_.frontier.back();
  }
  if (!result_.frontier.empty()) result_.baseline_devices = result_.frontier.front().devices;
  for (Candidate& candidate : result_.plans) {
    for (const FrontierPoint& point : result_.frontier) {
      if (point.devices != candidate.strategy.devices()) continue;
      candidate.efficiency =
          candidate.predicted.tokens_per_second_per_device / result_.frontier.front().tokens_per_second_per_device;
      candidate.marginal_efficiency = point.marginal_efficiency;
    }
  }
}

void Search::explain_failure() {
  Infeasible failure;
  if (result_.strategies == 0) {
    failure.limit = "legality";
    int64_t most = 0;
    for (const auto& [reason, count] : result_.illegal) {
      if (count > most)
        most = count, failure.explanation = fmt::format("no strategy is legal; most often because {}", reason);
    }
    if (most == 0) failure.explanation = "no strategy has the fixed keys on these device counts";
    result_.infeasible = std::move(failure);
    return;
  }
  if (not_priced_ && !nearest_over_limit_ && too_large_.empty()) throw *not_priced_;
  if (!nearest_over_limit_) return explain_memory();
  const Candidate& nearest = nearest_over_limit_->candidate;
  const bool late = request_.deadline_seconds > 0 && nearest.budget.train_seconds &&
                    *nearest.budget.train_seconds > request_.deadline_seconds;
  failure.limit = late ? "deadline" : "budget";
  failure.explanation = late ? fmt::format("the deadline binds: the fastest plan needs {:.3g} days, {:.3g} are allowed",
                                           *nearest.budget.train_seconds / 86400, request_.deadline_seconds / 86400)
                             : fmt::format("the budget binds: the cheapest plan costs {} USD, {} are allowed",
                                           figure_text(*nearest.budget.usd), figure_text(request_.budget_usd));
  failure.nearest = nearest;
  result_.infeasible = std::move(failure);
}

/// The nearest plan is the one whose compiled peak misses by least: bounds rank the strategies, the first few are
/// compiled.
void Search::explain_memory() {
  std::stable_sort(too_large_.begin(), too_large_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (too_large_.size() > kNearestTried) too_large_.resize(kNearestTried);
  Infeasible failure;
  failure.limit = "memory";
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [bound, strategy] : too_large_) {
    const double allowed = static_cast<double>(ceiling(strategy.devices()));
    if (static_cast<double>(bound) / allowed >= least) continue;
    Evaluation evaluation = evaluate(request_.model, request_.job, request_.machine, request_.stack, strategy, false);
    const double share = static_cast<double>(evaluation.candidate.predicted.peak_bytes) / allowed;
    if (share >= least) continue;
    least = share;
    failure.nearest = std::move(evaluation.candidate);
  }
  if (failure.nearest) {
    failure.explanation = fmt::format("memory binds: the smallest plan needs {} per device, {} are allowed",
                                      bytes_text(failure.nearest->predicted.peak_bytes),
                                      bytes_text(ceiling(failure.nearest->strategy.devices())));
  }
  result_.infeasible = std::move(failure);
}

}  // namespace

SearchResult search(const SearchRequest& request) {
  ensure(!request.device_counts.empty() && request.top >= 1, "a search has device counts and keeps a plan");
  ensure(request.job.sequence_length > 0 && request.job.global_batch > 0, "sequence length and global batch are known");
  return Search(request).run();
}

}  // namespace foresail
