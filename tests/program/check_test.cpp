// The static check refuses Programs that would read garbage, overwrite what lives, or do not fit their group.
#include "program/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "ops/op_table.h"
#include "program/operand_sizes.h"
#include "tests/program/check_support.h"

namespace foresail {
namespace {

using testing::block_named;
using testing::mentions;
using testing::problems_of;
using testing::stages_of;

Program one_rank() { return stages_of("micro_batch=2")[0]; }

TEST(Check, RefusesAReadOfWhatWasNeverWritten) {
  Program program = one_rank();
  auto& instructions = block_named(program, "block.forward").instructions;
  instructions.erase(instructions.begin());
  EXPECT_TRUE(mentions(check_program(program), "never written"));
}

/// The instructions of a block whose removal nothing in the block or after it reveals: they only add to what is there.
bool only_adds(const Block& block, const Instruction& instruction) {
  return instruction.kind == InstructionKind::op &&
         std::all_of(instruction.outputs.begin(), instruction.outputs.end(), [&](int32_t output) {
           return block.buffers[static_cast<size_t>(output)].memory == MemoryKind::gradients;
         });
}

TEST(Check, RefusesEveryRemovedProducerOfForwardAndBackward) {
  for (const char* strategy : {"micro_batch=2", "tp=2", "pp=2,schedule=zb-h1", "dp=2,zero_stage=3", "cp=2"}) {
    const auto whole = stages_of(strategy);
    int refused = 0;
    for (size_t b = 0; b < whole[0].blocks.size(); ++b) {
      const std::string& name = whole[0].blocks[b].name;
      if (name != "block.forward" && name != "block.backward") continue;
      // The last instruction's result is read by the next layer as whatever its place held before.
      for (size_t i = 0; i + 1 < whole[0].blocks[b].instructions.size(); ++i) {
        auto stages = whole;
        Block& block = stages[0].blocks[b];
        if (only_adds(block, block.instructions[i])) continue;
        block.instructions.erase(block.instructions.begin() + static_cast<long>(i));
        EXPECT_FALSE(problems_of(stages).empty()) << strategy << ", " << name << " " << i;
        ++refused;
      }
    }
    EXPECT_GE(refused, 15) << strategy;
  }
}

TEST(Check, RefusesAConsumerThatRunsBeforeItsProducer) {
  Program program = one_rank();
  auto& instructions = block_named(program, "block.forward").instructions;
  for (size_t i = 0; i + 1 < instructions.size(); ++i) {
    const auto& next = instructions[i + 1].inputs;
    if (std::find(next.begin(), next.end(), instructions[i].outputs[0]) == next.end()) continue;
    std::swap(instructions[i], instructions[i + 1]);
    EXPECT_FALSE(check_program(program).empty()) << i;
    std::swap(instructions[i], instructions[i + 1]);
  }
  EXPECT_TRUE(check_program(program).empty());
}

TEST(Check, RefusesABufferOutsideTheArena) {
  Program program = one_rank();
  program.arena.bytes -= 64;
  EXPECT_TRUE(mentions(check_program(program), "outside the arena"));
}

TEST(Check, RefusesAMisalignedBuffer) {
  Program program = one_rank();
  for (Buffer& buffer : block_named(program, "head").buffers) buffer.offset += 4;
  EXPECT_TRUE(mentions(check_program(program), "not aligned"));
}

TEST(Check, RefusesOverlapInsideAnOperator) {
  Program program = one_rank();
  Block& block = block_named(program, "block.forward");
  Instruction& product = block.instructions[1];  // linear: not allowed in place
  block.buffers[product.outputs[0]] = block.buffers[product.inputs[0]];
  EXPECT_TRUE(mentions(check_program(program), "overlap"));
}

TEST(Check, RefusesOperandsThatDoNotFit) {
  Program program = one_rank();
  Block& block = block_named(program, "block.forward");
  block.buffers[block.instructions[1].outputs[0]].type.shape[1] += 8;
  EXPECT_TRUE(mentions(check_program(program), "operands of linear do not fit"));
}

/// The first instruction of this kind, and the block that holds it.
std::pair<Block*, Instruction*> first_of(Program& program, InstructionKind kind) {
  for (Block& block : program.blocks) {
    for (Instruction& instruction : block.instructions) {
      if (instruction.kind == kind) return {&block, &instruction};
    }
  }
  throw std::runtime_error("no such instruction");
}

TEST(Check, RefusesCollectivesWhoseSizesDoNotFitTheGroup) {
  for (const InstructionKind kind : {InstructionKind::all_gather, InstructionKind::reduce_scatter}) {
    auto stages = stages_of("dp=2,zero_stage=2");
    if (kind == InstructionKind::all_gather) stages = stages_of("dp=2,zero_stage=3");
    const auto [block, instruction] = first_of(stages[0], kind);
    const bool gathers = kind == InstructionKind::all_gather;
    block->buffers[(gathers ? instruction->inputs : instruction->outputs)[0]].type.shape[0] /= 2;
    EXPECT_TRUE(mentions(check_program(stages[0]), "do not fit a group of 2 ranks"));
  }
}

TEST(Check, RefusesAGroupThatTheStageIsNotIn) {
  auto stages = stages_of("dp=2");
  first_of(stages[0], InstructionKind::all_reduce).second->group = GroupKind::embedding;
  EXPECT_TRUE(mentions(check_program(stages[0]), "stage 0 is in no embedding group"));
}

TEST(Check, RefusesAGroupOnTwoQueues) {
  auto stages = stages_of("dp=2,zero_stage=1,overlap=true");
  EXPECT_EQ(check_program(stages[0]), std::vector<std::string>{});
  first_of(stages[0], InstructionKind::all_gather).second->queue = Queue::host_copy;
  EXPECT_TRUE(mentions(check_program(stages[0]), "on two queues"));
}

TEST(Check, RefusesSharesOfParametersThatAreNotGathered) {
  auto stages = stages_of("dp=2,zero_stage=1");
  for (Block& block : stages[0].blocks) {
    std::erase_if(block.instructions, [](const Instruction& i) { return i.kind == InstructionKind::all_gather; });
  }
  EXPECT_TRUE(mentions(check_program(stages[0]), "not gathered"));
}

TEST(Check, RefusesTheWrongShareOfARange) {
  auto stages = stages_of("dp=2,zero_stage=1");
  for (const InstructionKind kind : {InstructionKind::reduce_scatter, InstructionKind::all_gather}) {
    auto broken = stages[0];
    const auto [block, instruction] = first_of(broken, kind);
    const auto& own = kind == InstructionKind::all_gather ? instruction->inputs : instruction->outputs;
    block->buffers[own[0]].shard_stride *= 2;
    EXPECT_FALSE(check_program(broken).empty());
  }
}

TEST(Check, RefusesAShareOfTheLastRankBeyondItsSegment) {
  auto stages = stages_of("dp=2,zero_stage=1");
  for (Buffer& buffer : block_named(stages[0], "head.norm").buffers) {
    if (buffer.shard_stride > 0) buffer.shard_stride *= 1000;
  }
  const auto problems = check_program(stages[0]);
  EXPECT_TRUE(mentions(problems, "leaves its segment") || mentions(problems, "outside the arena"));
}

TEST(Check, RefusesAGradientRangeThatWasNotZeroed) {
  auto stages = stages_of("dp=2,zero_stage=2");
  auto& zeroes = block_named(stages[0], "block.zero").instructions;
  ASSERT_FALSE(zeroes.empty());
  zeroes.pop_back();
  EXPECT_TRUE(mentions(check_program(stages[0]), "never written"));
}

TEST(Check, RefusesParametersThatWereNotGatheredForABlock) {
  auto stages = stages_of("dp=2,zero_stage=3");
  auto& gathers = block_named(stages[0], "block.gather").instructions;
  gathers.erase(gathers.begin());
  EXPECT_TRUE(mentions(check_program(stages[0]), "never written"));
}

TEST(Check, RefusesWritingWhatIsBeingSent) {
  for (const char* strategy :
       {"pp=2", "pp=2,schedule=zb-v,virtual_stages=2", "pp=2,schedule=interleaved,virtual_stages=2"}) {
    auto stages = stages_of(strategy);
    EXPECT_EQ(problems_of(stages), std::vector<std::string>{}) << strategy;
    for (Block& block : stages[0].blocks) {
      std::erase_if(block.instructions, [](const Instruction& i) { return i.kind == InstructionKind::wait_send; });
    }
    EXPECT_TRUE(mentions(check_program(stages[0]), "overwritten while a message is sent")) << strategy;
    EXPECT_TRUE(mentions(check_program(stages[0]), "ends without waiting")) << strategy;
  }
}

TEST(Check, RefusesABufferThatLeavesTheSlotOfItsMicroBatch) {
  auto stages = stages_of("pp=2,schedule=zb-h1");
  ASSERT_GT(stages[0].chunks[0].slots, 1);
  stages[0].chunks[0].slot_bytes -= stages[0].alignment;
  EXPECT_TRUE(mentions(check_program(stages[0]), "leaves the slot"));
}

TEST(Check, RefusesATensorKeptInAnothersPlace) {
  Program program = one_rank();
  for (Buffer& buffer : block_named(program, "block.backward").buffers) {
    if (buffer.name == "normed_1") buffer.name = "normed_2";
  }
  EXPECT_TRUE(mentions(check_program(program), "something else was kept"));
}

TEST(Check, RefusesAHeaderThatDoesNotFitItsBlocks) {
  struct Change {
    const char* what;
    std::function<void(Program&)> apply;
  };
  const Change changes[] = {
      {"step inputs before the arena", [](Program& p) { p.arena.step_inputs.offset = -64; }},
      {"too small step inputs", [](Program& p) { p.arena.step_inputs.bytes = 8; }},
      {"swapped numbers", [](Program& p) { std::swap(p.arena.gradients.offset, p.arena.gradients.bytes); }},
      {"a reversed segment", [](Program& p) { std::swap(p.arena.master.offset, p.arena.master.bytes); }},
      {"two segments in one place", [](Program& p) { p.arena.moment2 = p.arena.moment1; }},
      {"a segment behind its region", [](Program& p) { p.arena.persistent_bytes -= 64; }},
      {"scratch beyond the arena", [](Program& p) { p.arena.scratch.bytes += 64; }},
      {"other parameters", [](Program& p) { p.parameter_elements = 1; }},
      {"no global batch", [](Program& p) { p.global_batch = 0; }},
      {"a large global batch", [](Program& p) { p.global_batch = int64_t{1} << 40; }},
      {"odd rows", [](Program& p) { ++p.rows_per_micro_batch; }},
      {"no layers", [](Program& p) { p.chunks[0].layers = 0; }},
      {"more layers", [](Program& p) { ++p.chunks[0].layers; }},
      {"a huge carried slot", [](Program& p) { p.chunks[0].carried_bytes = int64_t{1} << 40; }},
      {"a delayed slot for nothing", [](Program& p) { p.chunks[0].delayed_bytes = 64; }},
      {"an arena that goes on", [](Program& p) { p.arena.bytes += 64; }},
      {"a layer of another stage", [](Program& p) { p.calls[static_cast<size_t>(Phase::forward)][0][1].layer = 9; }},
      {"no tokens", [](Program& p) { p.reads_tokens = false; }},
      {"no targets", [](Program& p) { p.reads_targets = false; }},
      {"no optimizer", [](Program& p) { p.calls[static_cast<size_t>(Phase::update)].assign(1, {}); }},
      {"half an optimizer", [](Program& p) { p.calls[static_cast<size_t>(Phase::update)][0].pop_back(); }},
  };
  EXPECT_TRUE(check_program(one_rank()).empty());
  for (const Change& change : changes) {
    Program program = one_rank();
    change.apply(program);
    EXPECT_FALSE(check_program(program).empty()) << change.what;
  }
}

TEST(Check, RefusesStagesThatDisagreeAboutTheStep) {
  auto stages = stages_of("pp=2,micro_batch=2,ragged_batch=true");
  EXPECT_TRUE(problems_of(stages).empty());
  --stages[1].global_batch;  // as many micro-batches
  EXPECT_TRUE(mentions(check_pipeline(stages), "same pipeline"));
}

TEST(Check, RefusesAttributesThatAreNotThoseOfTheOperands) {
  const std::function<void(OpAttributes&)> changes[] = {
      [](OpAttributes& a) { a.heads += 1; }, [](OpAttributes& a) { a.kv_heads += 1024; },
      [](OpAttributes& a) { a.head_dim += 1; }, [](OpAttributes& a) { a.sequence_length *= 4; }};
  for (const char* strategy : {"micro_batch=2", "cp=2", "cp=2,context=all_to_all"}) {
    const Program whole = stages_of(strategy)[0];
    int refused = 0;
    for (size_t b = 0; b < whole.blocks.size(); ++b) {
      for (size_t i = 0; i < whole.blocks[b].instructions.size(); ++i) {
        const OpKind kind = whole.blocks[b].instructions[i].op;
        const bool attends = info(kind).op_class == OpClass::attention || kind == OpKind::rope;
        if (whole.blocks[b].instructions[i].kind != InstructionKind::op || !attends) continue;
        for (const auto& change : changes) {
          Program program = whole;
          change(program.blocks[b].instructions[i].attributes);
          EXPECT_FALSE(check_program(program).empty()) << strategy << ", " << name_of(kind);
          ++refused;
        }
      }
    }
    EXPECT_GE(refused, 12) << strategy;
  }
}

TEST(Check, RefusesIndicesThatPointNowhere) {
  Program program = one_rank();
  program.calls[static_cast<size_t>(Phase::forward)][0][0].block = 1000;
  EXPECT_TRUE(mentions(check_program(program), "a block that does not exist"));
  program = one_rank();
  block_named(program, "block.forward").instructions[0].inputs[0] = -1;
  EXPECT_TRUE(mentions(check_program(program), "no buffer of the block"));
}

TEST(Check, KnowsTheOperandsOfEveryKind) {
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    EXPECT_NE(operand_pattern(static_cast<OpKind>(kind)), "") << name_of(static_cast<OpKind>(kind));
  }
  const auto type = [](std::vector<int64_t> shape) { return TensorType{DType::f32, std::move(shape)}; };
  OpInstance norm{
      OpKind::rms_norm_backward, {}, {type({8, 4}), type({8, 4}), type({4}), type({8})}, {type({8, 4}), type({4})}};
  EXPECT_TRUE(operands_agree(norm, 1));
  norm.inputs.push_back(type({8, 4}));
  EXPECT_TRUE(operands_agree(norm, 1));
  norm.inputs[2] = type({2});
  EXPECT_FALSE(operands_agree(norm, 1));
  const OpInstance gate{OpKind::swiglu_backward, {}, {type({8, 3}), type({8, 6})}, {type({8, 6})}};
  EXPECT_TRUE(operands_agree(gate, 1));
  const OpInstance loss{OpKind::cross_entropy_loss, {}, {type({8, 9}), type({8}), type({2, 8, 3})}, {type({1})}};
  EXPECT_TRUE(operands_agree(loss, 2));
  EXPECT_FALSE(operands_agree(loss, 4));
}

TEST(Check, RefusesEveryHalvedBufferOfALayer) {
  for (const char* strategy : {"micro_batch=2", "tp=2", "dp=2,zero_stage=3"}) {
    const auto whole = stages_of(strategy);
    for (size_t b = 0; b < whole[0].blocks.size(); ++b) {
      const std::string& name = whole[0].blocks[b].name;
      if (name != "block.forward" && name != "block.backward" && name != "head") continue;
      for (size_t i = 0; i < whole[0].blocks[b].buffers.size(); ++i) {
        auto stages = whole;
        int64_t& size = stages[0].blocks[b].buffers[i].type.shape.back();
        if (size == 1) continue;
        size /= 2;
        EXPECT_FALSE(problems_of(stages).empty())
            << strategy << ", " << name << ": " << whole[0].blocks[b].buffers[i].name;
      }
    }
  }
}

TEST(ReadProgram, RefusesAnUnknownOperatorAndAnIndexOutOfRange) {
  const std::string dump = dump_program(one_rank());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = dump;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_THROW(read_program(with("\"embedding\"", "\"embeding\""), "dump"), Error);
  EXPECT_THROW(read_program(with("\"block\": 0", "\"block\": 99"), "dump"), Error);
  EXPECT_THROW(read_program(dump.substr(0, dump.size() / 2), "dump"), Error);
}

}  // namespace
}  // namespace foresail
