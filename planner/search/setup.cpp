// From a machine, a stack and a device count to what compiler and simulator need, and defaults that the user left open.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/human.h"
#include "planner/search/search.h"

namespace foresail {
namespace {

// Every pointer that cudaMalloc returns is aligned so (CUDA C++ Programming Guide, device memory accesses).
constexpr int64_t kGpuAlignment = 256;
constexpr int64_t kMostDevices = 1 << 20;

bool profiled(const Machine& machine) { return machine.kind == "profiled"; }

int threads_for(const Machine& machine, int64_t devices) {
  return static_cast<int>(std::max<int64_t>(1, machine.cores / devices));
}

int64_t parse_count(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostDevices) {
    throw_bad_input(fmt::format("--devices '{}'", text), fmt::format("not a whole number from 1 to {}", kMostDevices),
                    "use N, A..B or A,B,C");
  }
  return value;
}

/// Parameters and tokens per step of the GPT-3 family (Brown et al. 2020, table 2.1).
struct PublishedBatch {
  double parameters, tokens;
};
constexpr std::array<PublishedBatch, 6> kPublishedBatches = {
    {{125e6, 0.5e6}, {760e6, 0.5e6}, {1.3e9, 1e6}, {6.7e9, 2e6}, {13e9, 2e6}, {175e9, 3.2e6}}};

double published_tokens_per_step(double parameters) {
  const auto& rows = kPublishedBatches;
  // Below the table the batch shrinks with the model; beyond it the last value holds.
  if (parameters <= rows.front().parameters) return rows.front().tokens * parameters / rows.front().parameters;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (parameters > rows[i].parameters) continue;
    const double t =
        std::log(parameters / rows[i - 1].parameters) / std::log(rows[i].parameters / rows[i - 1].parameters);
    return rows[i - 1].tokens * std::pow(rows[i].tokens / rows[i - 1].tokens, t);
  }
  return rows.back().tokens;
}

/// The least common multiple of the counts; 0 if it exceeds `most`.
int64_t common_multiple(const std::vector<int64_t>& counts, int64_t most) {
  int64_t common = 1;
  for (const int64_t count : counts) {
    common = common / std::gcd(common, count) * count;  // both at most 2^40
    if (common > most) return 0;
  }
  return common;
}

}  // namespace

std::vector<int64_t> parse_device_counts(const std::string& text, const Machine& machine) {
  if (text.empty()) return {machine.devices};
  const size_t range = text.find("..");
  std::set<int64_t> counts;
  if (range != std::string::npos) {
    const int64_t first = parse_count(text.substr(0, range)), last = parse_count(text.substr(range + 2));
    if (first > last)
      throw_bad_input(fmt::format("--devices '{}'", text), "the range is empty", "write A..B with A <= B");
    for (int64_t count = first; count <= last; ++count) counts.insert(count);
  } else {
    size_t begin = 0;
    while (true) {
      const size_t comma = text.find(',', begin);
      counts.insert(parse_count(text.substr(begin, comma == std::string::npos ? comma : comma - begin)));
      if (comma == std::string::npos) break;
      begin = comma + 1;
    }
  }
  return {counts.begin(), counts.end()};
}

Target target_for(const Machine& machine, const Stack& stack, int64_t devices) {
  Target target;
  target.framework_bytes = machine.framework_bytes;
  target.framework_bytes_spread = machine.framework_bytes_spread;
  if (profiled(machine)) {
    target.back_end = "cpu";
    target.threads = threads_for(machine, devices);
    target.workspace_bytes = machine.workspace_bytes;
    return target;
  }
  target.back_end = "catalogue";
  target.alignment = kGpuAlignment;
  target.unfused_attention = stack.attention == "unfused";
  target.fused_kernels = stack.fused_kernels;
  target.blocking_communication = !stack.tensor_parallel_overlap && !stack.data_parallel_overlap;
  return target;
}

std::unique_ptr<CostModel> costs_for(const Machine& machine, const Stack& stack, int64_t devices) {
  if (!profiled(machine)) return make_catalogue_cost_model(machine, stack);
  return make_profiled_cost_model(machine, static_cast<int>(devices), threads_for(machine, devices));
}

Objective objective_from_name(const std::string& name) {
  if (name == "time") return Objective::time;
  if (name == "cost") return Objective::cost;
  if (name == "throughput") return Objective::throughput;
  throw_bad_input(fmt::format("--objective '{}'", name), "no such objective", "use time, cost or throughput");
}

ProposedBatch propose_global_batch(const ModelSpec& model, int64_t sequence_length,
                                   const std::vector<int64_t>& device_counts) {
  ensure(sequence_length > 0 && !device_counts.empty(), "a sequence length and a device count are known");
  const double parameters = static_cast<double>(parameter_count(model));
  const double tokens = published_tokens_per_step(parameters);
  const double sequences = std::max(1.0, tokens / static_cast<double>(sequence_length));
  int64_t batch = int64_t{1} << std::llround(std::log2(sequences));
  // Every device must be able to take part in data parallelism.
  const int64_t largest = *std::max_element(device_counts.begin(), device_counts.end());
  const int64_t common = common_multiple(device_counts, std::max(batch, largest));
  const int64_t unit = common > 0 ? common : largest;
  batch = std::max(unit, batch / unit * unit);
  std::string rounding = "a multiple of " + counted(unit, "device");
  if (device_counts.size() > 1) {
    rounding = common > 0 ? fmt::format("a multiple of {}, which every device count divides", unit)
                          : fmt::format(
                                "a multiple of {}, the largest device count (counts that do not divide it "
                                "have fewer strategies)",
                                unit);
  }
  return {batch, fmt::format("about {} tokens per step for {} parameters, as in the GPT-3 family (Brown et al. "
                             "2020, table 2.1), rounded to {}",
                             figure_text(tokens), figure_text(parameters), rounding)};
}

}  // namespace foresail
