#include "runtime/trainer/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/parallel.h"

namespace foresail {
namespace {

constexpr int64_t kShortest = 32;

/// The buffer of that name in the last block, as bytes from the start of the arena.
int64_t logits_offset(const Program& program) {
  const auto& calls = program.calls[static_cast<size_t>(Phase::forward)];
  ensure(calls.size() == 1 && !calls.front().empty(), "a logits Program has a forward phase of one chunk");
  const Call& call = calls.front().back();
  const RegisterFile registers = registers_for(program, call, program.schedule.back());
  for (const Buffer& buffer : program.blocks[static_cast<size_t>(call.block)].buffers) {
    if (buffer.name == "logits") return registers[static_cast<size_t>(buffer.base)] + buffer.offset;
  }
  ensure(false, "the last block of a logits Program holds the logits");
  return 0;
}

}  // namespace

struct Generator::Length {
  Program program;
  int64_t logits = 0;
  std::unique_ptr<Executor> executor;  ///< bound when first needed
};

Generator::Generator(const Checkpoint& checkpoint, int64_t context, int threads)
    : model_(parse_model_config(checkpoint.state().model_config, checkpoint.path().string() + ": model_config")) {
  model_.name = checkpoint.state().model_name;
  context_ = std::clamp<int64_t>(context, 1, std::max<int64_t>(1, model_.max_positions));
  set_thread_count(threads);
  device_ = make_cpu_device(threads);
  Target target;
  target.threads = threads;
  const WorkspaceOf asked = [this](const OpInstance& op) { return device_->workspace_bytes(op); };
  int64_t arena_bytes = 0;
  for (int64_t tokens = std::min(kShortest, context_);; tokens = std::min(2 * tokens, context_)) {
    auto length = std::make_unique<Length>();
    length->program = compile_logits(model_, tokens, kFloat32Precision, target, asked);
    length->logits = logits_offset(length->program);
    arena_bytes = std::max(arena_bytes, length->program.arena.bytes);
    lengths_.push_back(std::move(length));
    if (tokens == context_) break;
  }
  arena_ = std::make_unique<Arena>(arena_bytes);
  const RankSlices slices = rank_slices(model_, Strategy{}, {});
  auto segments = segment_views(lengths_.front()->program, slices, arena_->data());
  std::erase_if(segments, [](const SegmentView& view) { return view.quantity != Quantity::parameter; });
  load_slices(checkpoint, segments, {.convert = true});
  active_ = lengths_.front().get();
}

Generator::~Generator() = default;

Generator::Length& Generator::length_for(int64_t tokens) {
  for (auto& length : lengths_) {
    if (length->program.sequence_length < tokens) continue;
    activate(*length);
    return *length;
  }
  ensure(false, "no more tokens than the context");
  return *lengths_.back();
}

/// Moves the parameters to where this length's Program has them.
void Generator::activate(Length& length) {
  if (active_ == &length && length.executor != nullptr) return;
  const Segment& from = active_->program.arena.parameters;
  const Segment& to = length.program.arena.parameters;
  ensure(from.bytes == to.bytes, "parameters do not depend on the length");
  std::memmove(arena_->data() + to.offset, arena_->data() + from.offset, static_cast<size_t>(from.bytes));
  active_ = &length;
  if (length.executor == nullptr) {
    length.executor = std::make_unique<Executor>(length.program, *device_, nullptr, *arena_, 0);
  }
  length.executor->startup();  // constants of another length may have lain where these are
}

std::span<const float> Generator::next_scores(std::span<const int32_t> tokens) {
  ensure(!tokens.empty(), "scores follow at least one token");
  if (static_cast<int64_t>(tokens.size()) > context_) tokens = tokens.last(static_cast<size_t>(context_));
  Length& length = length_for(static_cast<int64_t>(tokens.size()));
  const std::span<int32_t> slot = length.executor->tokens(0);
  std::fill(slot.begin(), slot.end(), 0);  // what follows the last token is not seen: attention is causal
  std::copy(tokens.begin(), tokens.end(), slot.begin());
  length.executor->step();
  const auto* logits = reinterpret_cast<const float*>(arena_->data() + length.logits);
  return {logits + (static_cast<int64_t>(tokens.size()) - 1) * model_.vocabulary,
          static_cast<size_t>(model_.vocabulary)};
}

int32_t draw(std::span<const float> scores, double temperature, double uniform) {
  const auto best = std::max_element(scores.begin(), scores.end());
  if (temperature <= 0) return static_cast<int32_t>(best - scores.begin());
  double total = 0;
  for (const float score : scores) total += std::exp((score - *best) / temperature);
  double left = uniform * total;
  for (size_t id = 0; id < scores.size(); ++id) {
    left -= std::exp((scores[id] - *best) / temperature);
    if (left <= 0) return static_cast<int32_t>(id);
  }
  return static_cast<int32_t>(best - scores.begin());
}

}  // namespace foresail
