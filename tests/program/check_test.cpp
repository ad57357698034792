// The static check refuses Programs that would read garbage, overwrite what lives, or wait forever.
#include "program/check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_job;
using testing::small_llama;
using testing::train_programs;

Program one_rank() { return train_programs(small_llama(), small_job(), "micro_batch=2")[0]; }

Block& block_named(Program& program, const std::string& name) {
  for (Block& block : program.blocks) {
    if (block.name == name) return block;
  }
  throw std::runtime_error("no block " + name);
}

bool mentions(const std::vector<std::string>& problems, const std::string& text) {
  return std::any_of(problems.begin(), problems.end(),
                     [&](const std::string& problem) { return problem.find(text) != std::string::npos; });
}

TEST(Check, RefusesAReadOfWhatWasNeverWritten) {
  Program program = one_rank();
  auto& instructions = block_named(program, "block.forward").instructions;
  instructions.erase(instructions.begin());
  EXPECT_TRUE(mentions(check_program(program), "never written"));
}

bool works_in_place(const Block& block, const Instruction& instruction) {
  const Buffer& output = block.buffers[instruction.outputs[0]];
  return std::any_of(instruction.inputs.begin(), instruction.inputs.end(), [&](int32_t input) {
    return block.buffers[input].base == output.base && block.buffers[input].offset == output.offset;
  });
}

TEST(Check, RefusesEveryRemovedForwardProducer) {
  Program whole = one_rank();
  const size_t count = block_named(whole, "block.forward").instructions.size();
  int refused = 0;
  for (size_t i = 0; i < count; ++i) {
    Program program = whole;
    Block& block = block_named(program, "block.forward");
    // Without an operator that works in place its reader finds the older value: a wrong result, not a wrong address.
    if (works_in_place(block, block.instructions[i])) continue;
    block.instructions.erase(block.instructions.begin() + static_cast<long>(i));
    EXPECT_FALSE(check_program(program).empty()) << i;
    ++refused;
  }
  EXPECT_GE(refused, 7);
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

TEST(Check, RefusesAMissingMicroBatchAndATakenSlot) {
  Program program = one_rank();
  program.schedule.erase(program.schedule.begin() + 1);
  EXPECT_TRUE(mentions(check_program(program), "of 4 micro-batches run forward"));
  Program twice = one_rank();
  std::swap(twice.schedule[2], twice.schedule[3]);  // forward of the next micro-batch before backward of this one
  EXPECT_TRUE(mentions(check_program(twice), "slot 0 is taken"));
}

TEST(Check, RefusesOperandsThatDoNotFit) {
  Program program = one_rank();
  Block& block = block_named(program, "block.forward");
  block.buffers[block.instructions[1].outputs[0]].type.shape[1] += 8;
  EXPECT_TRUE(mentions(check_program(program), "wrong shape"));
}

TEST(CheckPipeline, FindsAMessageThatNobodyReceives) {
  auto stages = train_programs(small_llama(), small_job(), "pp=2,micro_batch=2");
  block_named(stages[1], "receive_hidden").instructions.clear();
  EXPECT_FALSE(check_pipeline(stages).empty());
}

TEST(CheckPipeline, FindsADeadlock) {
  auto stages = train_programs(small_llama(), small_job(), "pp=2,micro_batch=2");
  for (ScheduleEntry& entry : stages[0].schedule) {  // stage 0 wants a gradient before it sent anything
    if (entry.phase == Phase::forward) {
      std::swap(entry, stages[0].schedule[3]);
      break;
    }
  }
  EXPECT_TRUE(mentions(check_pipeline(stages), "deadlock"));
}

TEST(CheckPipeline, FindsSizesThatDiffer) {
  auto stages = train_programs(small_llama(), small_job(), "pp=2,micro_batch=2");
  block_named(stages[1], "receive_hidden").buffers[0].type.shape[0] /= 2;
  EXPECT_TRUE(mentions(check_pipeline(stages), "bytes"));
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

TEST(LivenessBound, CountsWhatLivesAtOnce) {
  const Program program = one_rank();
  EXPECT_GT(liveness_bound(program), program.arena.persistent_bytes + program.arena.slots.bytes);
  EXPECT_LE(liveness_bound(program), program.arena.bytes);
}

TEST(ArenaGaps, LieBetweenBuffers) {
  const Program program = one_rank();
  for (const Segment& gap : arena_gaps(program)) {
    EXPECT_GT(gap.bytes, 0);
    EXPECT_LE(gap.offset + gap.bytes, program.arena.bytes);
  }
}

}  // namespace
}  // namespace foresail
