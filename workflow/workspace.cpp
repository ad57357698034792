#include "workflow/workspace.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "kernels/device.h"
#include "planner/search/space.h"
#include "profiler/host.h"
#include "program/compile.h"
#include "program/schedule.h"

namespace foresail {
namespace {

/// Adds what one strategy's Programs use.
void add_used(const SearchRequest& request, const Strategy& strategy, const Target& target, Device& device,
              std::map<std::string, int64_t>& used) {
  const WorkspaceOf asked = [&device](const OpInstance& op) { return device.workspace_bytes(op); };
  Job job = request.job;
  job.batch_ramp.clear();  // its Programs have the same ops
  for (int stage = 0; stage < strategy.pp; ++stage) {
    const ProgramSet set = compile(request.model, job, strategy, target, stage, asked);
    std::vector<const Program*> programs{&set.train, &set.evaluate};
    for (const Program& program : set.fallback) programs.push_back(&program);
    for (const Program* program : programs) {
      for (const auto& [signature, bytes] : used_workspaces(*program)) {
        int64_t& known = used[signature];
        known = std::max(known, bytes);
      }
    }
  }
}

}  // namespace

void list_workspace(SearchRequest& request) {
  if (request.machine.kind != "profiled" || request.machine.cpu_model != cpu_model()) return;
  const int threads_before = thread_count();
  std::map<std::string, int64_t> used;
  for (const int64_t devices : request.device_counts) {
    Target target = target_for(request.machine, request.stack, devices);
    target.workspace_bytes.clear();    // a profile's figures may be of fewer threads than these devices have
    set_thread_count(target.threads);  // a library describes its products for the team that will run them
    const auto device = make_cpu_device(target.threads);
    std::set<std::string> seen;
    for (Strategy strategy : space_of(request, devices).strategies) {
      strategy.recompute = Recompute::none;  // what is replayed are the same ops
      strategy.recompute_layers.clear();
      // Schedules differ in order; only a backward that is split copies what it carries to its weight gradient.
      strategy.schedule = splits_backward(strategy.schedule) ? ScheduleKind::zb_h1 : ScheduleKind::one_f_one_b;
      strategy.virtual_stages = 1;
      strategy.stage_layers.clear();
      if (!legal(request.model, request.job, strategy).empty()) continue;
      if (seen.insert(to_text(strategy)).second) add_used(request, strategy, target, *device, used);
    }
  }
  set_thread_count(threads_before);
  for (const auto& [signature, bytes] : used) {
    int64_t& listed = request.machine.workspace_bytes[signature];
    listed = std::max(listed, bytes);
  }
}

}  // namespace foresail
