// Lossless JSON of a Program (schema foresail.program/2).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "program/attributes_json.h"
#include "program/enum_json.h"
#include "program/mesh_json.h"
#include "program/program.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.program/2";
// Bounds of what a dump may hold, far beyond any machine and small enough that sums and products stay in 64 bits.
constexpr int64_t kMost = int64_t{1} << 48;
constexpr int64_t kLeast = -kMost;
constexpr int64_t kMostDataBytes = int64_t{1} << 40;  ///< of one micro-batch
constexpr int64_t kMostMicroBatches = 1 << 20, kMostSlots = 1 << 14;

constexpr const char* kRegisterNames[] = {"absolute",        "parameter",       "gradient",       "expert_parameter",
                                          "expert_gradient", "parameter_shard", "gradient_shard", "tied_parameter",
                                          "tied_gradient",   "master",          "moment1",        "moment2",
                                          "saved",           "delayed",         "carried",        "x_in",
                                          "x_out",           "hidden_gradient", "data",           "scratch"};
static_assert(std::size(kRegisterNames) == kRegisterCount);
constexpr std::string_view kAnchorNames[] = {"none", "slot",    "delayed_slot", "carried_slot",
                                             "data", "scratch", "outgoing",     "outgoing_gradient"};
constexpr const char* kMemoryNames[] = {"parameters", "gradients", "optimizer", "activations", "scratch"};
constexpr const char* kInstructionNames[] = {"op",         "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                             "ring_shift", "send",       "receive",    "wait_send"};
constexpr const char* kShareNames[] = {"data", "expert", "tensor"};
constexpr const char* kQueueNames[] = {"compute", "inline_comm", "bulk_comm", "pipeline", "host_copy"};
constexpr const char* kTimeNames[] = {"compute",     "recompute", "tensor_comm",   "context_comm",
                                      "expert_comm", "data_comm", "pipeline_comm", "optimizer"};
constexpr const char* kPhaseNames[] = {"startup",         "begin_step",       "forward",   "backward",
                                       "weight_gradient", "reduce_gradients", "grad_norm", "update"};
static_assert(std::size(kPhaseNames) == kPhaseCount);

Json json_of(const Buffer& buffer) {
  Json json{{"name", buffer.name},        {"base", name_in(kRegisterNames, buffer.base)},
            {"offset", buffer.offset},    {"dtype", name_of(buffer.type.dtype)},
            {"shape", buffer.type.shape}, {"memory", name_in(kMemoryNames, buffer.memory)}};
  if (buffer.shard_stride != 0) json["shard_stride"] = buffer.shard_stride;
  if (buffer.share_of != ShareOf::data) json["share_of"] = name_in(kShareNames, buffer.share_of);
  return json;
}

std::vector<int64_t> bounded_ints(const JsonObject& object, const std::string& key) {
  std::vector<int64_t> values = object.get_ints(key);
  for (const int64_t value : values) {
    if (value < kLeast || value > kMost) object.fail(key, "a number is beyond any memory", "check the dump");
  }
  return values;
}

DType dtype_from(const JsonObject& object, const std::string& key) {
  const auto dtype = dtype_from_name(object.require_string(key));
  if (!dtype) object.fail(key, "unknown element type", "use one of f64, f32, bf16, f16, i32");
  return *dtype;
}

Buffer buffer_from(const JsonObject& object) {
  Buffer buffer;
  buffer.name = object.require_string("name");
  buffer.base = value_in<Register>(kRegisterNames, object, "base");
  buffer.offset = object.require_int("offset", kLeast, kMost);
  buffer.type = {dtype_from(object, "dtype"), object.get_ints("shape")};
  double elements = 1;
  for (const int64_t size : buffer.type.shape) {
    if (size < 0) object.fail("shape", "a size is negative", "sizes are 0 or more");
    elements *= std::max(1.0, static_cast<double>(size));
  }
  if (elements > static_cast<double>(kMost))
    object.fail("shape", "the tensor is larger than any memory", "check the sizes");
  buffer.memory = value_in<MemoryKind>(kMemoryNames, object, "memory");
  buffer.shard_stride = object.get_int("shard_stride", 0, 0, kMost);
  if (object.has("share_of")) buffer.share_of = value_in<ShareOf>(kShareNames, object, "share_of");
  return buffer;
}

Json json_of(const Instruction& instruction) {
  Json json{{"kind", name_in(kInstructionNames, instruction.kind)}};
  if (instruction.kind == InstructionKind::op) {
    json["op"] = name_of(instruction.op);
    if (Json attributes = json_of(instruction.attributes); !attributes.empty())
      json["attributes"] = std::move(attributes);
  }
  json["inputs"] = instruction.inputs;
  json["outputs"] = instruction.outputs;
  if (instruction.workspace >= 0) json["workspace"] = instruction.workspace;
  json["queue"] = name_in(kQueueNames, instruction.queue);
  json["time"] = name_in(kTimeNames, instruction.time);
  if (is_collective(instruction.kind)) {
    json["group"] = name_of(instruction.group);
  }
  if (instruction.kind == InstructionKind::send || instruction.kind == InstructionKind::receive) {
    json["peer_stage"] = instruction.peer_stage;
  }
  if (instruction.channel != 0) json["channel"] = instruction.channel;
  if (instruction.keep != 0) json["keep"] = instruction.keep;
  return json;
}

std::vector<int32_t> indices_from(const JsonObject& object, const std::string& key, size_t limit) {
  std::vector<int32_t> indices;
  for (const int64_t index : object.get_ints(key)) {
    if (index < 0 || index >= static_cast<int64_t>(limit))
      object.fail(key, "an index is out of range", "check the dump");
    indices.push_back(static_cast<int32_t>(index));
  }
  return indices;
}

GroupKind group_from(const JsonObject& object) {
  const std::string text = object.require_string("group");
  for (int kind = 0; kind < kGroupKinds; ++kind) {
    if (name_of(static_cast<GroupKind>(kind)) == text) return static_cast<GroupKind>(kind);
  }
  object.fail("group", fmt::format("'{}' is unknown", text), "check the dump");
}

Instruction instruction_from(const JsonObject& object, const Block& block) {
  const size_t buffers = block.buffers.size();
  Instruction instruction;
  instruction.kind = value_in<InstructionKind>(kInstructionNames, object, "kind");
  if (instruction.kind == InstructionKind::op) {
    instruction.op = op_kind_from_name(object.require_string("op"));
    if (object.has("attributes")) instruction.attributes = attributes_from(object.require_object("attributes"));
  }
  instruction.inputs = indices_from(object, "inputs", buffers);
  instruction.outputs = indices_from(object, "outputs", buffers);
  instruction.workspace = static_cast<int32_t>(object.get_int("workspace", -1, 0, static_cast<int64_t>(buffers) - 1));
  instruction.queue = value_in<Queue>(kQueueNames, object, "queue");
  instruction.time = value_in<TimeKind>(kTimeNames, object, "time");
  if (object.has("group")) instruction.group = group_from(object);
  instruction.peer_stage = static_cast<int32_t>(object.get_int("peer_stage", 0, 0, 1 << 20));
  instruction.channel = static_cast<int32_t>(object.get_int("channel", 0, 0, 1 << 20));
  instruction.keep = static_cast<int32_t>(object.get_int("keep", 0, 0, 1 << 10));
  const bool needs_operands = instruction.kind != InstructionKind::wait_send;
  if (needs_operands && instruction.inputs.empty() && instruction.outputs.empty()) {
    object.fail("inputs", "the instruction has no operands", "check the dump");
  }
  return instruction;
}

Json json_of(const Block& block) {
  Json json{{"name", block.name}, {"buffers", Json::array()}, {"instructions", Json::array()}};
  for (const Buffer& buffer : block.buffers) json["buffers"].push_back(json_of(buffer));
  for (const Instruction& instruction : block.instructions) json["instructions"].push_back(json_of(instruction));
  return json;
}

Block block_from(const JsonObject& object) {
  Block block;
  block.name = object.require_string("name");
  for (const JsonObject& buffer : object.get_objects("buffers")) block.buffers.push_back(buffer_from(buffer));
  for (const JsonObject& instruction : object.get_objects("instructions")) {
    block.instructions.push_back(instruction_from(instruction, block));
  }
  return block;
}

Json json_of(const Segment& segment) { return Json::array({segment.offset, segment.bytes}); }

struct SegmentField {
  const char* name;
  Segment ArenaMap::*segment;
};
constexpr SegmentField kSegments[] = {
    {"step_inputs", &ArenaMap::step_inputs}, {"metrics", &ArenaMap::metrics},
    {"constants", &ArenaMap::constants},     {"data", &ArenaMap::data},
    {"parameters", &ArenaMap::parameters},   {"gradients", &ArenaMap::gradients},
    {"master", &ArenaMap::master},           {"moment1", &ArenaMap::moment1},
    {"moment2", &ArenaMap::moment2},         {"slots", &ArenaMap::slots},
    {"scratch", &ArenaMap::scratch},
};

Json json_of(const ArenaMap& arena) {
  Json json = Json::object();
  for (const SegmentField& field : kSegments) json[field.name] = json_of(arena.*field.segment);
  json["persistent_bytes"] = arena.persistent_bytes;
  json["bytes"] = arena.bytes;
  return json;
}

ArenaMap arena_from(const JsonObject& object) {
  ArenaMap arena;
  for (const SegmentField& field : kSegments) {
    const auto values = bounded_ints(object, field.name);
    if (values.size() != 2) object.fail(field.name, "a segment is [offset, bytes]", "check the dump");
    arena.*field.segment = {values[0], values[1]};
  }
  arena.persistent_bytes = object.require_int("persistent_bytes", 0, kMost);
  arena.bytes = object.require_int("bytes", 0, kMost);
  return arena;
}

Json json_of(const Precision& precision) {
  return {{"parameter", name_of(precision.parameter)}, {"activation", name_of(precision.activation)},
          {"gradient", name_of(precision.gradient)},   {"moment", name_of(precision.moment)},
          {"statistic", name_of(precision.statistic)}, {"master_copy", precision.master_copy}};
}

Precision precision_from(const JsonObject& object) {
  return {dtype_from(object, "parameter"), dtype_from(object, "activation"), dtype_from(object, "gradient"),
          dtype_from(object, "moment"),    dtype_from(object, "statistic"),  object.get_bool("master_copy", false)};
}

Json call_json(const Call& call) {
  Json json{{"block", call.block}, {"layer", call.layer}, {"base", call.base}};
  if (call.last_only) json["last_only"] = true;
  if (call.anchors == usual_anchors()) return json;
  for (const Anchor anchor : call.anchors) json["anchors"].push_back(kAnchorNames[static_cast<size_t>(anchor)]);
  return json;
}

Json calls_json(const Program& program) {
  Json json = Json::object();
  for (int phase = 0; phase < kPhaseCount; ++phase) {
    Json chunks = Json::array();
    for (const std::vector<Call>& list : program.calls[phase]) {
      Json calls = Json::array();
      for (const Call& call : list) calls.push_back(call_json(call));
      chunks.push_back({{"calls", std::move(calls)}});
    }
    json[kPhaseNames[phase]] = std::move(chunks);
  }
  return json;
}

Call call_from(const JsonObject& object, size_t blocks) {
  Call call;
  call.block = static_cast<int32_t>(object.require_int("block", 0, static_cast<int64_t>(blocks) - 1));
  call.layer = static_cast<int32_t>(object.require_int("layer", -1, 1 << 20));
  call.last_only = object.get_bool("last_only", false);
  const auto base = bounded_ints(object, "base");
  if (base.size() != call.base.size()) object.fail("base", "the register file has another size", "dump it again");
  std::copy(base.begin(), base.end(), call.base.begin());
  if (!object.has("anchors")) return call;
  const auto anchors = object.get_strings("anchors");
  if (anchors.size() != call.anchors.size())
    object.fail("anchors", "the register file has another size", "dump it again");
  for (size_t r = 0; r < anchors.size(); ++r) {
    const auto found = std::find(std::begin(kAnchorNames), std::end(kAnchorNames), anchors[r]);
    if (found == std::end(kAnchorNames)) object.fail("anchors", "'" + anchors[r] + "' is unknown", "dump it again");
    call.anchors[r] = static_cast<Anchor>(found - std::begin(kAnchorNames));
  }
  return call;
}

void read_calls(const JsonObject& object, Program& program) {
  for (int phase = 0; phase < kPhaseCount; ++phase) {
    for (const JsonObject& chunk : object.get_objects(kPhaseNames[phase])) {
      auto& list = program.calls[phase].emplace_back();
      for (const JsonObject& call : chunk.get_objects("calls")) list.push_back(call_from(call, program.blocks.size()));
    }
  }
}

constexpr std::pair<const char*, int64_t ScheduleEntry::*> kEntryOffsets[] = {
    {"slot_offset", &ScheduleEntry::slot_offset},       {"delayed_offset", &ScheduleEntry::delayed_offset},
    {"carried_offset", &ScheduleEntry::carried_offset}, {"scratch_offset", &ScheduleEntry::scratch_offset},
    {"out_offset", &ScheduleEntry::out_offset},         {"gradient_offset", &ScheduleEntry::gradient_offset}};

Json schedule_json(const Program& program) {
  Json schedule = Json::array();
  for (const ScheduleEntry& entry : program.schedule) {
    schedule.push_back({{"phase", name_in(kPhaseNames, entry.phase)},
                        {"chunk", entry.chunk},
                        {"micro_batch", entry.micro_batch},
                        {"slot", entry.slot}});
    if (entry.carried_slot != 0) schedule.back()["carried_slot"] = entry.carried_slot;
    for (const auto& [name, offset] : kEntryOffsets) {
      if (entry.*offset != 0) schedule.back()[name] = entry.*offset;
    }
    if (entry.last) schedule.back()["last"] = true;
  }
  return schedule;
}

void read_schedule(const JsonObject& object, Program& program) {
  const int64_t chunks = std::max<int64_t>(1, static_cast<int64_t>(program.chunks.size()));
  for (const JsonObject& entry : object.get_objects("schedule")) {
    ScheduleEntry result;
    result.phase = value_in<Phase>(kPhaseNames, entry, "phase");
    result.chunk = static_cast<int32_t>(entry.require_int("chunk", 0, chunks - 1));
    result.micro_batch = static_cast<int32_t>(entry.require_int("micro_batch", -1, program.micro_batches - 1));
    if (result.micro_batch >= 0 && program.chunks.empty())
      entry.fail("micro_batch", "there is no chunk", "dump it again");
    const Chunk chunk = program.chunks.empty() ? Chunk{} : program.chunks[static_cast<size_t>(result.chunk)];
    result.slot = static_cast<int32_t>(entry.require_int("slot", 0, std::max(0, chunk.slots - 1)));
    result.carried_slot =
        static_cast<int32_t>(entry.get_int("carried_slot", 0, 0, std::max(0, chunk.carried_slots - 1)));
    result.last = entry.get_bool("last", false);
    for (const auto& [name, offset] : kEntryOffsets) result.*offset = entry.get_int(name, 0, 0, kMost);
    program.schedule.push_back(result);
  }
}

Json json_of(const Chunk& chunk) {
  return {{"virtual_stage", chunk.virtual_stage},
          {"first_layer", chunk.first_layer},
          {"layers", chunk.layers},
          {"slot_bytes", chunk.slot_bytes},
          {"slots", chunk.slots},
          {"delayed_bytes", chunk.delayed_bytes},
          {"carried_bytes", chunk.carried_bytes},
          {"carried_slots", chunk.carried_slots}};
}

Chunk chunk_from(const JsonObject& object) {
  Chunk chunk;
  const auto small = [&](const char* key, int64_t most) {
    return static_cast<int32_t>(object.require_int(key, 0, most));
  };
  chunk.virtual_stage = small("virtual_stage", 1 << 20);
  chunk.first_layer = small("first_layer", 1 << 20);
  chunk.layers = small("layers", 1 << 20);
  chunk.slot_bytes = object.require_int("slot_bytes", 0, kMost);
  chunk.slots = small("slots", kMostSlots);
  chunk.delayed_bytes = object.require_int("delayed_bytes", 0, kMost);
  chunk.carried_bytes = object.require_int("carried_bytes", 0, kMost);
  chunk.carried_slots = small("carried_slots", kMostSlots);
  return chunk;
}

}  // namespace

std::string dump_program(const Program& program) {
  Json json{{"schema", kSchema},
            {"name", program.name},
            {"mesh", mesh_form(program.mesh)},
            {"stage", program.stage},
            {"zero_stage", program.zero_stage},
            {"global_batch", program.global_batch},
            {"micro_batches", program.micro_batches},
            {"rows_per_micro_batch", program.rows_per_micro_batch},
            {"sequence_length", program.sequence_length},
            {"precision", json_of(program.precision)},
            {"accumulate_dtype", name_of(program.accumulate_dtype)},
            {"parameter_elements", program.parameter_elements},
            {"expert_elements", program.expert_elements},
            {"arena", json_of(program.arena)},
            {"data_stride_bytes", program.data_stride_bytes},
            {"alignment", program.alignment},
            {"reads_tokens", program.reads_tokens},
            {"reads_targets", program.reads_targets},
            {"model_flops", program.model_flops},
            {"chunks", Json::array()},
            {"blocks", Json::array()}};
  if (program.frozen_elements > 0) json["frozen_elements"] = program.frozen_elements;
  if (program.frozen_expert_elements > 0) json["frozen_expert_elements"] = program.frozen_expert_elements;
  for (const Chunk& chunk : program.chunks) json["chunks"].push_back(json_of(chunk));
  for (const Block& block : program.blocks) json["blocks"].push_back(json_of(block));
  json["calls"] = calls_json(program);
  json["schedule"] = schedule_json(program);
  return json.dump(1) + "\n";
}

Program read_program(const std::string& text, const std::string& source) {
  const Json json = parse_json(text, source);
  const JsonObject object(json, source);
  object.require_schema(kSchema);
  Program program;
  program.name = object.require_string("name");
  program.mesh = mesh_from(object.require_object("mesh"));
  program.stage = static_cast<int32_t>(object.require_int("stage", 0, program.mesh.pp - 1));
  program.zero_stage = static_cast<int32_t>(object.get_int("zero_stage", 0, 0, 3));
  program.global_batch = object.get_int("global_batch", 0, 0, kMost);
  program.micro_batches = object.require_int("micro_batches", 1, kMostMicroBatches);
  program.rows_per_micro_batch = object.require_int("rows_per_micro_batch", 1, kMost);
  program.sequence_length = object.require_int("sequence_length", 1, kMost);
  program.precision = precision_from(object.require_object("precision"));
  program.accumulate_dtype =
      object.has("accumulate_dtype") ? dtype_from(object, "accumulate_dtype") : program.precision.gradient;
  program.parameter_elements = object.require_int("parameter_elements", 0, kMost);
  program.expert_elements = object.get_int("expert_elements", 0, 0, kMost);
  program.frozen_elements = object.get_int("frozen_elements", 0, 0, program.parameter_elements);
  program.frozen_expert_elements = object.get_int("frozen_expert_elements", 0, 0, program.expert_elements);
  program.arena = arena_from(object.require_object("arena"));
  program.data_stride_bytes = object.require_int("data_stride_bytes", 0, kMostDataBytes);
  program.alignment = object.require_int("alignment", 1, 1 << 20);
  program.reads_tokens = object.get_bool("reads_tokens", false);
  program.reads_targets = object.get_bool("reads_targets", false);
  program.model_flops = object.require_number("model_flops", 0, 1e300);
  for (const JsonObject& chunk : object.get_objects("chunks")) program.chunks.push_back(chunk_from(chunk));
  for (const JsonObject& block : object.get_objects("blocks")) program.blocks.push_back(block_from(block));
  read_calls(object.require_object("calls"), program);
  read_schedule(object, program);
  return program;
}

std::string program_digest(const Program& program) { return digest_of(dump_program(program)); }

}  // namespace foresail
