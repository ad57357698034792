// Faults of what ranks share: tensor, sequence and context parallelism, and random numbers.
#include <algorithm>
#include <cstring>

#include "tests/equivalence/faults.h"

namespace foresail::testing {
namespace {

using enum InstructionKind;

const char* const kTensor = "tp=2,micro_batch=2";
const char* const kSequence = "tp=2,sequence_parallel=true,micro_batch=2";
const char* const kRing = "cp=2,micro_batch=2";
const char* const kAllToAll = "cp=2,context=all_to_all,micro_batch=2";

Fault without(std::string name, const Matches& matches, int nth = 0) {
  return in_program(std::move(name), [=](Program& p, const MeshCoordinate&) { remove(p, matches, nth); });
}

/// Swaps the two halves of an operator's output.
void swap_halves(const OpInstance& op, const KernelArguments& arguments) {
  auto* begin = static_cast<std::byte*>(arguments.outputs[0]);
  const int64_t half = op.outputs[0].bytes() / 2;
  std::swap_ranges(begin, begin + half, begin + half);
}

/// What no tensor covers of the parameters is not zero: padded rows and columns take part in products.
void fill_padding(const State& state, const MeshCoordinate&) {
  const Segment& segment = state.program.arena.parameters;
  const DType dtype = state.program.precision.parameter;
  const int64_t elements = segment.bytes / size_of(dtype);
  std::vector<bool> covered(static_cast<size_t>(elements), false);
  for (const ParameterSlice& slice : state.slices.parameters) {
    const int64_t columns = slice.column_end - slice.column_begin;
    for (int64_t row = 0; row < slice.row_end - slice.row_begin; ++row) {
      std::fill_n(covered.begin() + slice.element_offset + row * slice.row_stride, columns, true);
    }
  }
  for (int64_t i = 0; i < elements; ++i) {
    if (covered[static_cast<size_t>(i)]) continue;
    std::byte* at = state.arena + segment.offset + i * size_of(dtype);
    const double wide = 0.05;
    const float narrow = 0.05F;
    if (dtype == DType::f64) std::memcpy(at, &wide, sizeof wide);
    if (dtype == DType::f32) std::memcpy(at, &narrow, sizeof narrow);
  }
}

void plant_sequence_faults(FaultList& list) {
  list.add("llama", kSequence,
           without("rows not gathered before a cut product", in_block("block.forward", all_gather, GroupKind::tensor)));
  list.add("llama", kSequence,
           without("rows of a partial sum not reduced and scattered",
                   in_block("block.forward", reduce_scatter, GroupKind::tensor), 1));
  list.add("gpt2", kSequence,
           without("gradients of norms hold only this rank's rows",
                   in_block("block.finish_reduction", all_reduce, GroupKind::tensor)));
  list.add("llama", kSequence,
           without("gradient of the final norm holds only this rank's rows",
                   in_block("head.finish_reduction", all_reduce, GroupKind::tensor)));
  list.add("gpt2", kSequence,
           in_context("dropout of cut rows keyed by the row within the rank", OpKind::dropout,
                      [](KernelContext& context) { context.tensor_rank = 0; }));
}

void plant_padding_and_copy_faults(FaultList& list) {
  list.add("llama", kTensor, in_program("padded vocabulary column not masked", [](Program& p, const MeshCoordinate&) {
             change(
                 p, [](const Block& block, const Instruction&) { return block.name == "head"; },
                 [](Instruction& i) { i.attributes.vocabulary += 1; });
           }));
  Fault padding = fault_named("padded FFN columns are not zero");
  padding.state = fill_padding;
  list.add("uneven", kTensor, padding);
  list.add("uneven", kTensor,
           without("gradients of copied KV heads not summed",
                   in_block("block.finish_reduction", all_reduce, GroupKind::kv_copies)));
  list.add("llama", "tp=4,micro_batch=2",
           in_program("copied KV heads counted by every rank in the norm", [](Program& p, const MeshCoordinate&) {
             change(p, in_block("block.norm", OpKind::squared_norm), [](Instruction& i) {
               if (i.attributes.count_rule == CountRule::first_copy) {
                 i.attributes.count_rule = CountRule::every_tensor_rank;
               }
             });
           }));
}

void plant_ring_faults(FaultList& list) {
  list.add("llama", kRing,
           without("a ring step is skipped: keys of other ranks are never seen",
                   in_block("block.forward", OpKind::ring_attention)));
  list.add("llama", kRing, without("keys do not travel", in_block("block.forward", ring_shift, GroupKind::context)));
  list.add(
      "llama", kRing,
      without("gradients of keys do not come home", in_block("block.backward", ring_shift, GroupKind::context), 2));
  list.add("llama", kRing,
           in_context("positions are contiguous, not zigzag, in the rotation", OpKind::rope,
                      [](KernelContext& context) { context.context_rank = 0; }));
  list.add("gpt2", kRing,
           in_context("learned positions of another rank", OpKind::position_embedding,
                      [](KernelContext& context) { context.context_rank = 1 - context.context_rank; }));
  list.add("llama", kRing,
           in_context("causal mask of another rank's positions", OpKind::ring_attention,
                      [](KernelContext& context) { context.context_rank = 1 - context.context_rank; }));
  list.add(
      "llama", kRing,
      without("gradients not reduced over context ranks", in_block("bucket.reduce", all_reduce, GroupKind::replica)));
}

void plant_exchange_faults(FaultList& list) {
  list.add("llama", kAllToAll, after_kernel("parts of an all-to-all swapped", OpKind::heads_split, swap_halves));
  list.add("llama", kAllToAll,
           without("heads are not exchanged for positions", in_block("block.forward", all_to_all, GroupKind::context)));
  list.add("llama", kAllToAll,
           without("gradients of heads are not exchanged back",
                   in_block("block.backward", all_to_all, GroupKind::context), 1));
  list.add("llama", kAllToAll,
           after_kernel("rows of the context ranks merged into the wrong positions", OpKind::rows_merge, swap_halves));
}

}  // namespace

void plant_tensor_faults(FaultList& list) {
  list.add("llama", kTensor,
           without("norm gradients unreduced over tp: the all-reduce before a norm's backward is dropped",
                   in_block("block.backward", all_reduce, GroupKind::tensor), 1));
  list.add("qwen3", kTensor,
           without("q/k norm gradients not summed over tp",
                   in_block("block.finish_reduction", all_reduce, GroupKind::tensor)));
  list.add("llama", kTensor,
           without("row-parallel product not summed over tp in forward",
                   in_block("block.forward", all_reduce, GroupKind::tensor)));
  list.add("llama", kTensor,
           without("gradient of the head's input not summed over tp", in_block("head", all_reduce, GroupKind::tensor)));
  list.add(
      "llama", kTensor,
      in_program("shifted shard: one rank's weight begins a row late", [](Program& p, const MeshCoordinate& place) {
        if (place.tp != 1) return;
        for (Block& block : p.blocks) {
          for (Buffer& buffer : block.buffers) {
            if (block.name != "block.forward" || buffer.name != "attention_out") continue;
            if (buffer.base == Register::parameter) {
              buffer.offset += buffer.type.shape[1] * size_of(buffer.type.dtype);
            }
          }
        }
      }));
  plant_sequence_faults(list);
  plant_padding_and_copy_faults(list);
}

void plant_context_faults(FaultList& list) {
  plant_ring_faults(list);
  plant_exchange_faults(list);
}

void plant_random_number_faults(FaultList& list) {
  list.add("gpt2", "dp=2,micro_batch=2",
           in_context("dropout keyed by the local row", OpKind::dropout,
                      [](KernelContext& context) { context.first_row = 0; }));
  list.add("gpt2", kTensor,
           in_context("attention dropout keyed by the local head", OpKind::attention,
                      [](KernelContext& context) { context.tensor_rank = 0; }));
  list.add("gpt2", "pp=2,micro_batch=2",
           in_context("dropout keyed by the same layer everywhere", OpKind::dropout,
                      [](KernelContext& context) { context.layer = 0; }));
  list.add("gpt2", kRing,
           in_context("dropout keyed by the row within the context rank", OpKind::dropout,
                      [](KernelContext& context) { context.context_rank = 0; }));
}

}  // namespace foresail::testing
