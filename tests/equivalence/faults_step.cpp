// Faults of gradients and parameters: data parallelism, ZeRO, overlap, norm and optimizer.
#include <algorithm>

#include "tests/equivalence/faults.h"
#include "tests/equivalence/generator/factors.h"

namespace foresail::testing {
namespace {

using enum InstructionKind;

const std::string kData = "dp=2,micro_batch=2";
const char* const kRagged = "dp=3,micro_batch=1,ragged_batch=true";
const char* const kBuckets = "dp=2,micro_batch=2,overlap=true,bucket_bytes=20000";

Fault without(std::string name, const Matches& matches, int nth = 0) {
  return in_program(std::move(name), [=](Program& p, const MeshCoordinate&) { remove(p, matches, nth); });
}

std::string zero(int stage) { return "dp=2,micro_batch=2,zero_stage=" + std::to_string(stage); }

std::string hybrid(int stage) { return "dp=4,micro_batch=1,zero_group=2,zero_stage=" + std::to_string(stage); }

/// The first wait of the step for `queue` is lost. Only one: what runs away further writes where kernels keep pointers.
Fault without_first_wait(std::string name, Queue queue, OpKind slow) {
  Fault fault = fault_named(std::move(name));
  fault.device = slowed_down(slow, 1);
  fault.dependencies = [queue](const Program&, Dependencies& dependencies) {
    const auto first = std::find_if(dependencies.waits.begin(), dependencies.waits.end(),
                                    [&](const Dependency& wait) { return wait.awaited_queue == queue; });
    if (first != dependencies.waits.end()) dependencies.waits.erase(first);
  };
  return fault;
}

void plant_norm_faults(FaultList& list) {
  list.add("llama", "tp=2,micro_batch=2",
           without("tensor missing from the clip norm", in_block("head.norm", OpKind::squared_norm)));
  list.add("llama", "tp=2,micro_batch=2", in_program("tensor doubled in the clip norm", [](Program& p, const auto&) {
             repeat(p, in_block("block.norm", OpKind::squared_norm));
           }));
  list.add("llama", "tp=2,micro_batch=2",
           in_program("replicated norms counted by every tp rank", [](Program& p, const MeshCoordinate&) {
             change(p, in_block("block.norm", OpKind::squared_norm),
                    [](Instruction& i) { i.attributes.count_rule = CountRule::every_tensor_rank; });
           }));
  list.add("llama", zero(1), in_program("shard counted twice in the norm", [](Program& p, const MeshCoordinate&) {
             repeat(p, in_block("block.norm", OpKind::squared_norm));
           }));
  list.add("llama", zero(3),
           without("norm of a rank's own shards only", in_block("finish_metrics", all_reduce, GroupKind::world)));
}

}  // namespace

void plant_optimizer_faults(FaultList& list) {
  plant_norm_faults(list);
  list.add("llama", "tp=2,micro_batch=2",
           in_program("decay on one rank's norms", [](Program& p, const MeshCoordinate& place) {
             if (place.tp != 1) return;
             change(p, in_block("block.update", OpKind::adamw), [](Instruction& i) { i.attributes.decay = true; });
           }));
  list.add("llama", kData, without("gradients not zeroed before a step", in_block("begin_step", OpKind::fill_zero), 1));
}

void plant_data_faults(FaultList& list) {
  list.add("llama", kData,
           without("gradients not reduced over dp", in_block("bucket.reduce", all_reduce, GroupKind::replica)));
  list.add("llama", kData, in_program("micro-batch counted twice, another never", [](Program& p, const auto&) {
             for (ScheduleEntry& entry : p.schedule) {
               if (entry.micro_batch == 1) entry.micro_batch = 0;
             }
           }));
  Fault mean = fault_named("sum for mean: every data rank divides by its own tokens");
  mean.step_inputs = [](StepInputs& inputs, const MeshCoordinate&) { inputs.inverse_valid_tokens *= 2; };
  list.add("llama", kData, mean);
  Fault places = fault_named("mean over places, not over valid tokens");
  places.step_inputs = [](StepInputs& inputs, const MeshCoordinate&) { inputs.inverse_valid_tokens *= 11.0 / 12; };
  list.add("llama", kRagged, places);
  Fault mask = fault_named("masked places of a ragged batch are trained on");
  mask.data = [](std::span<int32_t>, std::span<int32_t> targets, int64_t) {
    std::replace_if(
        targets.begin(), targets.end(), [](int32_t target) { return target < 0; }, 0);
  };
  list.add("llama", kRagged, mask);
  list.add("llama", "dp=2,micro_batch=2,reduce_dtype=f64",
           in_program("the sum in another element type never comes back", [](Program& p, const MeshCoordinate&) {
             for (Block& block : p.blocks) {
               if (block.name == "bucket.reduce") block.instructions.pop_back();
             }
           }));
}

/// Accumulators in another element type than that in which kernels make gradients.
void plant_accumulation_faults(FaultList& list) {
  const std::string type = ",accumulate_dtype=" + other_type(list.device());
  list.add("llama", kData + type,
           in_program("accumulators take the last micro-batch only", [](Program& p, const auto&) {
             auto& calls = p.calls[static_cast<size_t>(Phase::backward)][0];
             calls.at(calls_named(p, Phase::backward, 0, "block.accumulate").at(0)).last_only = true;
           }));
  list.add("gpt2", kData + type, in_program("a tied head's gradients are not accumulated", [](Program& p, const auto&) {
             remove_call(p, Phase::backward, 0, calls_named(p, Phase::backward, 0, "embedding.accumulate").at(0));
           }));
  list.add("llama", kData + type,
           without("a micro-batch's gradients still hold those before it", in_block("block.zero", OpKind::fill_zero)));
  list.add("llama", kData + type,
           without("accumulators not zeroed before a step", in_block("begin_step", OpKind::fill_zero), 1));
  list.add("llama", zero(1) + type,
           without("accumulators of a range not reduced", in_block("block.reduce", reduce_scatter, GroupKind::shard)));
  list.add("llama", "dp=2,pp=2,micro_batch=1,schedule=zb-h1" + type,
           in_program("delayed weight gradients are not accumulated", [](Program& p, const auto&) {
             remove_call(p, Phase::weight_gradient, 0,
                         calls_named(p, Phase::weight_gradient, 0, "block.accumulate").at(0));
           }));
  list.add("llama", zero(2) + type,
           without("sums of ranks do not reach the accumulators", in_block("block.reduce", OpKind::add)));
}

void plant_zero_faults(FaultList& list) {
  list.add("llama", zero(1),
           without("stale ZeRO gather: shards are not gathered after the update",
                   in_block("block.update", all_gather, GroupKind::shard)));
  list.add("llama", zero(2),
           without("stale ZeRO gather under ZeRO-2", in_block("head.update", all_gather, GroupKind::shard)));
  list.add(
      "llama", zero(1),
      without("ZeRO-1: gradients of a range not reduced", in_block("block.reduce", reduce_scatter, GroupKind::shard)));
  list.add(
      "llama", zero(2),
      without("ZeRO-2: a micro-batch's gradients are not added to the shard", in_block("block.reduce", OpKind::add)));
  list.add("llama", zero(2),
           without("ZeRO-2: transient gradients are not zeroed", in_block("block.zero", OpKind::fill_zero), 1));
  list.add("llama", zero(3),
           without("ZeRO-3: gradients not reduced", in_block("block.reduce", reduce_scatter, GroupKind::shard)));
  list.add("llama", zero(3), in_program("ZeRO-3: a layer of backward is not gathered", [](Program& p, const auto&) {
             remove_call(p, Phase::backward, 0, calls_named(p, Phase::backward, 0, "block.gather").at(1));
           }));
  list.add("llama", zero(3), in_program("ZeRO-3: gathers another layer's shard", [](Program& p, const auto&) {
             const auto gathers = calls_named(p, Phase::forward, 0, "block.gather");
             auto& calls = p.calls[static_cast<size_t>(Phase::forward)][0];
             const auto shard = static_cast<size_t>(Register::parameter_shard);
             calls[gathers.at(1)].base[shard] = calls[gathers.at(0)].base[shard];
           }));
  for (const int stage : {1, 2, 3}) {
    list.add(
        "llama", hybrid(stage),
        without("hybrid: shards not summed over replicas", in_block("block.reduce", all_reduce, GroupKind::replica)));
  }
}

void plant_overlap_faults(FaultList& list) {
  list.add("llama", kBuckets, in_program("one bucket is not reduced", [](Program& p, const MeshCoordinate&) {
             remove_call(p, Phase::backward, 0, calls_named(p, Phase::backward, 0, "bucket.reduce").at(1));
           }));
  list.add("llama", kBuckets, in_program("a bucket is reduced after every micro-batch", [](Program& p, const auto&) {
             const auto buckets = calls_named(p, Phase::backward, 0, "bucket.reduce");
             p.calls[static_cast<size_t>(Phase::backward)][0][buckets.at(0)].last_only = false;
           }));
  list.add(
      "llama", kBuckets,
      without_first_wait("a bucket does not wait for its gradients", Queue::compute, OpKind::linear_backward_weight));
  list.add("llama", zero(3) + ",overlap=true",
           without_first_wait("compute does not wait for gathered parameters", Queue::bulk_comm, OpKind::adamw));
  list.add("llama", "pp=2,micro_batch=2,overlap=true",
           without_first_wait("hidden states are sent before they are there", Queue::compute, OpKind::add));
  list.add("llama", "pp=2,micro_batch=2,overlap=true",
           without_first_wait("compute does not wait for hidden states", Queue::pipeline, OpKind::add));
  // Slowness alone must not matter.
  Fault slow = fault_named("slow weight gradients");
  slow.device = slowed_down(OpKind::linear_backward_weight, 1);
  list.add_harmless("llama", kBuckets, slow);
  slow.name = "slow sums";
  slow.device = slowed_down(OpKind::add, 1);
  list.add_harmless("llama", "pp=2,micro_batch=2,overlap=true", slow);
  slow.name = "slow updates";
  slow.device = slowed_down(OpKind::adamw, 1);
  list.add_harmless("llama", zero(3) + ",overlap=true", slow);
}

}  // namespace foresail::testing
