// What is planned with a profile of this host can be run here: the workspace of every strategy's operators is listed.
#include "workflow/workspace.h"

#include <gtest/gtest.h>

#include "kernels/device.h"
#include "planner/search/search.h"
#include "profiler/host.h"
#include "program/compile.h"

namespace foresail {
namespace {

SearchRequest small_request(const std::string& precision) {
  SearchRequest request;
  ModelSpec& model = request.model;
  model.family = "llama";
  model.layers = 4, model.hidden = 32, model.heads = 4, model.kv_heads = 2, model.head_dim = 8;
  model.ffn = 48, model.vocabulary = 67, model.max_positions = 32;
  request.job.sequence_length = 16;
  request.job.global_batch = 8;
  request.job.precision = precision;
  request.machine.kind = "profiled";
  request.machine.cpu_model = cpu_model();
  request.machine.cores = 2;
  request.machine.devices_per_node = 2;
  request.device_counts = {2};
  return request;
}

/// Operators of `strategy` that ask for more than is listed.
std::vector<std::string> unlisted(const SearchRequest& request, const std::string& strategy) {
  const Target target = target_for(request.machine, request.stack, 2);
  const auto device = make_cpu_device(target.threads);
  const WorkspaceOf asked = [&](const OpInstance& op) { return device->workspace_bytes(op); };
  std::vector<std::string> missing;
  const Strategy parsed = parse_strategy(strategy).strategy;
  for (int stage = 0; stage < parsed.pp; ++stage) {
    const Program program = compile(request.model, request.job, parsed, target, stage, asked).train;
    for (const auto& [signature, bytes] : used_workspaces(program)) {
      const auto listed = request.machine.workspace_bytes.find(signature);
      if (listed == request.machine.workspace_bytes.end() || listed->second < bytes) missing.push_back(signature);
    }
  }
  return missing;
}

TEST(Workspace, IsListedForEverySchedule) {
  for (const char* precision : {"fp32", "fp16", "bf16"}) {
    SearchRequest request = small_request(precision);
    EXPECT_NE(unlisted(request, "pp=2,micro_batch=1,schedule=zb-h1"), std::vector<std::string>{}) << "products ask";
    list_workspace(request);
    for (const char* strategy :
         {"pp=2,micro_batch=1", "pp=2,micro_batch=1,schedule=zb-h1",
          "pp=2,micro_batch=1,schedule=zb-v,virtual_stages=2",
          "pp=2,micro_batch=2,schedule=interleaved,virtual_stages=2", "dp=2,micro_batch=2", "tp=2,micro_batch=4"}) {
      EXPECT_EQ(unlisted(request, strategy), std::vector<std::string>{}) << precision << " " << strategy;
    }
  }
}

}  // namespace
}  // namespace foresail
