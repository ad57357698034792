// Faults of a mixture of experts: rows on the way to their experts and back, groups of experts, statistics of routers.
#include <algorithm>

#include "tests/equivalence/faults.h"

namespace foresail::testing {
namespace {

using enum InstructionKind;

const char* const kSpread = "dp=2,ep=2,micro_batch=2";
const char* const kShared = "dp=2,etp=2,micro_batch=2";
const char* const kCopies = "dp=4,ep=2,micro_batch=1";
const char* const kTensor = "tp=2,sequence_parallel=true,ep=2,micro_batch=2";
/// Each tensor rank has half of a sequence.
const char* const kHalves = "tp=2,sequence_parallel=true,ep=2,micro_batch=1";
/// Half of the rows that an uneven router sends to a rank find no room: steps are repeated.
const char* const kTight = "dp=2,ep=2,micro_batch=2,moe_bound=1";

Fault without(std::string name, const Matches& matches, int nth = 0) {
  return in_program(std::move(name), [=](Program& p, const MeshCoordinate&) { remove(p, matches, nth); });
}

void plant_exchange_faults(FaultList& list) {
  const Matches forward = in_block("expert_block.forward", all_to_all, GroupKind::expert);
  const Matches backward = in_block("expert_block.backward", all_to_all, GroupKind::expert);
  list.add("mixtral", kSpread, without("rows do not travel to their experts", forward));
  list.add("mixtral", kSpread, without("experts do not hear how many rows came", forward, 1));
  list.add("mixtral", kSpread, without("results do not come back from the experts", forward, 2));
  list.add("mixtral", kSpread, without("gradients do not travel to the experts", backward));
  list.add("mixtral", kSpread, without("gradients do not come back from the experts", backward, 1));
  list.add("mixtral", kShared,
           without("shares of an expert's result not summed",
                   in_block("expert_block.forward", reduce_scatter, GroupKind::expert_tensor)));
  list.add("mixtral", kShared,
           without("rows of the others who share an expert not gathered",
                   in_block("expert_block.forward", all_gather, GroupKind::expert_tensor)));
  Fault forgotten =
      after_kernel("rows that found no room are forgotten", OpKind::moe_dispatch,
                   [](const OpInstance&, const KernelArguments& a) { *static_cast<double*>(a.outputs[3]) = 0; });
  list.add("mixtral", kTight, forgotten);
}

void plant_gradient_faults(FaultList& list) {
  const auto regroup = [](GroupKind group) {
    return [group](Program& p, const MeshCoordinate&) {
      change(p, in_block("expert_bucket.reduce", all_reduce, GroupKind::expert_replica),
             [group](Instruction& i) { i.group = group; });
    };
  };
  list.add("mixtral", kCopies,
           in_program("gradients of experts summed over all data ranks", regroup(GroupKind::replica)));
  list.add("mixtral", kCopies, in_program("gradients of different experts summed", regroup(GroupKind::expert)));
  list.add("mixtral", "dp=2,micro_batch=2,zero_stage=2",
           without("shards of experts not reduced",
                   in_block("expert_block.experts.reduce", reduce_scatter, GroupKind::expert_shard)));
  list.add("mixtral", "dp=2,micro_batch=2,zero_stage=3",
           without("stale experts", in_block("expert_block.experts.gather", all_gather, GroupKind::expert_shard)));
}

void plant_norm_faults(FaultList& list) {
  const Matches norm = in_block("expert_block.experts.norm", OpKind::squared_norm);
  list.add(
      "mixtral", kSpread,
      in_program("experts counted twice in the norm", [norm](Program& p, const MeshCoordinate&) { repeat(p, norm); }));
  const auto by_rule = [norm](CountRule rule) {
    return [norm, rule](Program& p, const MeshCoordinate&) {
      change(p, norm, [rule](Instruction& i) { i.attributes.count_rule = rule; });
    };
  };
  list.add("mixtral", kSpread,
           in_program("experts of other ranks missing in the norm", by_rule(CountRule::every_tensor_rank)));
  list.add("mixtral", "tp=2,sequence_parallel=true,micro_batch=2",
           in_program("every copy of an expert counted in the norm", by_rule(CountRule::every_tensor_rank)));
}

}  // namespace

void plant_expert_faults(FaultList& list) {
  plant_exchange_faults(list);
  plant_gradient_faults(list);
  plant_norm_faults(list);
  list.add("mixtral", kHalves,
           without("router statistics not summed over the ranks that share the rows",
                   in_block("expert_block.forward", all_reduce, GroupKind::tensor)));
  list.add("mixtral", "cp=2,ep=2,micro_batch=2",
           without("router statistics not summed over context ranks",
                   in_block("expert_block.forward", all_reduce, GroupKind::context)));
  list.add("mixtral", kTensor,
           in_context("routers take the statistics of another sequence", OpKind::moe_balance_backward,
                      [](KernelContext& context) { context.tensor_rank = 0; }));
  list.add("mixtral", kTensor,
           without("gradients of a router are a rank's share",
                   in_block("expert_block.finish_reduction", all_reduce, GroupKind::tensor)));
}

}  // namespace foresail::testing
