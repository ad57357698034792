#include "workflow/measured_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace foresail {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 40;
constexpr const char* kDefaultStack = "foresail";  // of rows that name none
constexpr int64_t kMostDegree = int64_t{1} << 20;
constexpr double kGptDropout = 0.1;  // of every published GPT run priced here (Megatron-LM's default)

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool is_name_of(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The catalogue machine with this device: "A100-SXM" with 80 GB is a machine of "A100-SXM-80GB"s. Form factor SXM
/// unless the row says PCIe.
std::string machine_for(const CsvRow& row) {
  const std::string gpu = row.text("gpu");
  const auto memory = row.integer("gpu_mem_gb", 1, kMostDegree);
  for (const std::string& name : catalogue_machine_names()) {
    if (!gpu.empty() && load_machine(name).device.name == gpu) return name;  // "A100-SXM-80GB" says it all
  }
  if (gpu.empty() || !memory) return "";
  const std::string form = contains(gpu, "PCIe") ? "PCIe" : "SXM";
  for (const std::string& name : catalogue_machine_names()) {
    const std::string device = load_machine(name).device.name;
    const std::string generation = device.substr(0, device.find('-'));
    if (gpu.starts_with(generation) && device == fmt::format("{}-{}-{}GB", generation, form, *memory)) return name;
  }
  return "";
}

std::string device_refusal(const CsvRow& row) {
  std::vector<std::string> known;
  for (const std::string& name : catalogue_machine_names()) known.push_back(load_machine(name).device.name);
  const std::string gpu = row.text("gpu"), memory = row.text("gpu_mem_gb");
  return fmt::format("device {}{} is not in the catalogue (known: {})",
                     gpu.empty() ? "(gpu is blank)" : "'" + gpu + "'",
                     memory.empty() ? ", gpu_mem_gb blank," : " with gpu_mem_gb " + memory, fmt::join(known, ", "));
}

/// "model 'x' is no catalogue name and layers, heads are blank"
std::string shape_refusal(const CsvRow& row) {
  std::vector<std::string> blank;
  for (const char* column : {"layers", "hidden", "heads", "vocab"}) {
    if (row.text(column).empty()) blank.emplace_back(column);
  }
  return fmt::format("model '{}' is no catalogue name and {} {} blank", row.text("model"), fmt::join(blank, ", "),
                     blank.size() == 1 ? "is" : "are");
}

/// Fills the model from the shape columns, or from the catalogue by name. Returns why it cannot; empty if it could.
std::string read_model(const CsvRow& row, MeasuredRun& run) {
  ModelSpec& m = run.model;
  const std::string name = row.text("model"), family = row.text("family");
  const auto layers = row.integer("layers", 1, kMostDegree), hidden = row.integer("hidden", 1, kMostSize);
  const auto heads = row.integer("heads", 1, kMostDegree), vocabulary = row.integer("vocab", 1, kMostSize);
  const auto sequence = row.integer("seq_len", 1, kMostSize);
  if (!sequence) return "seq_len is blank";
  run.job.sequence_length = *sequence;
  if (!layers || !hidden || !heads || !vocabulary) {
    if (!is_name_of(name, catalogue_model_names())) return shape_refusal(row);
    m = load_model(name);
    m.max_positions = std::max(m.max_positions, *sequence);
    return "";
  }
  if (family != "gpt" && family != "llama") return "family '" + family + "' is neither gpt nor llama";
  if (*hidden % *heads != 0) return fmt::format("hidden {} is not a multiple of heads {}", *hidden, *heads);
  const bool gpt = family == "gpt";
  m.name = name, m.family = gpt ? "gpt2" : "llama";
  m.layers = *layers, m.hidden = *hidden, m.heads = *heads, m.head_dim = *hidden / *heads;
  m.kv_heads = row.integer("kv_heads", 1, *heads).value_or(*heads);
  m.vocabulary = *vocabulary;
  m.max_positions = *sequence;
  if (gpt) {
    m.ffn = row.integer("ffn", 1, kMostSize).value_or(4 * *hidden);
    m.norm = NormKind::layer_norm, m.norm_epsilon = 1e-5;
    m.activation = ActivationKind::gelu_tanh, m.positions = PositionKind::learned;
    m.qkv_bias = m.attention_out_bias = m.mlp_bias = m.tied_embeddings = true;
    m.attention_dropout = m.residual_dropout = m.embedding_dropout = kGptDropout;
    return "";
  }
  const auto ffn = row.integer("ffn", 1, kMostSize);
  if (!ffn) return "ffn is blank";
  m.ffn = *ffn;
  return "";
}

/// What the row ran that our Programs cannot run yet, joined; empty: nothing.
std::string unbuilt_features(const CsvRow& row, const std::string& recompute) {
  std::vector<std::string> features;
  const auto more_than = [&](const char* column, int64_t built) {
    return row.integer(column, 0, kMostDegree).value_or(built) > built;
  };
  if (recompute != "none" && recompute != "full" && recompute != "selective") {
    features.push_back(recompute + " recompute");
  }
  if (more_than("ep", 1) || more_than("n_experts", 1)) features.emplace_back("mixture of experts");
  if (!row.text("offload").empty() && row.text("offload") != "0") features.emplace_back("offload");
  if (contains(row.text("precision"), "fp8") || contains(row.text("precision"), "fp4")) features.emplace_back("fp8");
  return fmt::format("{}", fmt::join(features, " + "));
}

/// Megatron's `selective` is not the preset of that name: it drops the attention core alone (Korthikanti et al. 2022,
/// section 5), which is a rule of tensors here. With flash attention nothing of it is ever kept.
void set_recompute(const std::string& recompute, MeasuredRun& run) {
  Strategy& strategy = run.stated.strategy;
  strategy.recompute = recompute == "full" ? Recompute::full : Recompute::none;
  if (recompute != "selective" || run.stack.attention != "unfused") return;
  std::vector<std::string> core = {"scores", "probabilities"};
  if (run.model.attention_dropout > 0) core.emplace_back("probabilities.dropped");
  strategy.recompute_layers = {{0, run.model.layers - 1, Recompute::none, std::move(core)}};
}

/// Step time as stated, else from tokens per second, else from TFLOP/s by the convention that the row names; 0: no
/// time.
double measured_seconds(const CsvRow& row, const MeasuredRun& run) {
  constexpr double kMost = 1e9;
  if (const auto seconds = row.number("step_time_s", 1e-9, kMost)) return *seconds;
  const double sequences = static_cast<double>(run.job.global_batch);
  const double length = static_cast<double>(run.job.sequence_length), devices = static_cast<double>(run.devices);
  if (const auto rate = row.number("tokens_per_s_per_gpu", 1e-9, kMost)) return sequences * length / (*rate * devices);
  const auto tflops = row.number("tflops_per_gpu", 1e-9, kMost);
  if (!tflops) return 0;
  const std::string convention = row.text("tflops_def");
  const double rate = *tflops * 1e12 * devices;
  if (contains(convention, "hardware FLOPs")) return gpt_hardware_flops(run.model, sequences, length) / rate;
  if (contains(convention, "model FLOPs")) return gpt_model_flops(run.model, sequences, length) / rate;
  return 0;
}

void state(MeasuredRun& run, const std::string& key) { run.stated.named.push_back(key); }

/// Sequence parallelism, interleaving and ZeRO: as the row says, else as the stack does by default.
void read_switches(const CsvRow& row, MeasuredRun& run) {
  Strategy& s = run.stated.strategy;
  for (const char* field : {"vpp", "sp", "zero_stage"}) {
    if (row.text(field).empty()) run.assumed[field] = "stack";
  }
  const std::string sp = row.text("sp");
  s.sequence_parallel = sp.empty() ? run.stack.sequence_parallel_default : sp != "0";
  // Alone on its tensor group a rank has nothing to cut; without a stated degree the planner decides.
  if (row.integer("tp", 1, kMostDegree).value_or(1) == 1) s.sequence_parallel = false;
  s.virtual_stages = row.integer("vpp", 1, kMostDegree).value_or(1);
  s.schedule = s.virtual_stages > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  s.zero_stage = row.integer("zero_stage", 0, 3).value_or(0);
  s.cp = row.integer("cp", 1, kMostDegree).value_or(1);
  for (const char* key : {"sequence_parallel", "virtual_stages", "schedule", "zero_stage", "cp"}) state(run, key);
}

/// Degrees and micro-batch: stated, derived (dp) or left open. False if they do not multiply to the devices.
bool read_strategy(const CsvRow& row, MeasuredRun& run) {
  Strategy& s = run.stated.strategy;
  const auto degree = [&](const char* column, int64_t& field) {
    if (const auto value = row.integer(column, 1, kMostDegree)) {
      field = *value;
      state(run, column);
    } else {
      run.open.emplace_back(column);
      run.assumed[column] = "planner";
    }
  };
  degree("tp", s.tp);
  degree("pp", s.pp);
  if (const auto micro_batch = row.integer("microbatch", 1, kMostDegree)) {
    s.micro_batch = *micro_batch;
    state(run, "micro_batch");
  } else {
    run.open.emplace_back("micro_batch");
    run.assumed["micro_batch"] = "planner";
  }
  if (!run.stated.names("tp") || !run.stated.names("pp")) return true;
  if (run.devices % (s.tp * s.pp * s.cp) != 0) return false;
  s.dp = run.devices / (s.tp * s.pp * s.cp);
  state(run, "dp");
  const auto stated_dp = row.integer("dp", 1, kMostDegree);
  return !stated_dp || *stated_dp == s.dp;
}

std::string precision_for(const CsvRow& row, MeasuredRun& run) {
  const std::string precision = row.text("precision");
  for (const char* name : {"bf16", "fp16", "fp32"}) {
    if (precision.starts_with(name)) return name;
  }
  run.assumed["precision"] = "stack";
  return run.stack.precision;
}

/// Everything after machine and stack are known; returns why the row is refused, empty if it is not.
std::string read_details(const CsvRow& row, MeasuredRun& run) {
  run.devices = row.integer("n_gpus", 1, kMostDegree).value_or(0);
  if (run.devices == 0) return "no device count";
  if (const std::string refused = read_model(row, run); !refused.empty()) return refused;
  run.job.model = run.model.name;
  std::string recompute = row.text("recompute");
  if (recompute.empty()) recompute = run.stack.recompute_default, run.assumed["recompute"] = "stack";
  const std::string features = unbuilt_features(row, recompute);
  if (!features.empty()) return "needs " + features;
  set_recompute(recompute, run);
  state(run, "recompute");
  read_switches(row, run);
  run.job.global_batch = row.integer("global_batch", 1, kMostSize).value_or(0);
  if (run.job.global_batch == 0) return "no global batch";
  run.job.precision = precision_for(row, run);
  run.seconds = measured_seconds(row, run);
  if (run.seconds <= 0) return "no time";
  if (!read_strategy(row, run)) return "degrees do not multiply to the devices";
  if (const auto peak = row.number("peak_mem_gb", 1e-6, 1e6)) run.peak_bytes = *peak * 1e9;
  if (const auto per_node = row.integer("gpus_per_node", 1, kMostDegree)) run.machine.devices_per_node = *per_node;
  run.machine.devices = run.devices;
  return "";
}

}  // namespace

double gpt_hardware_flops(const ModelSpec& model, double sequences, double sequence_length) {
  const double l = static_cast<double>(model.layers), h = static_cast<double>(model.hidden);
  const double v = static_cast<double>(model.vocabulary), s = sequence_length;
  return 96 * sequences * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

double gpt_model_flops(const ModelSpec& model, double sequences, double sequence_length) {
  const double l = static_cast<double>(model.layers), h = static_cast<double>(model.hidden);
  const double v = static_cast<double>(model.vocabulary), s = sequence_length;
  return 72 * sequences * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
}

MeasuredRun read_run(const CsvRow& row, const std::string& machine, const std::string& stack) {
  MeasuredRun run;
  run.id = row.text("id");
  run.stack_name = stack.empty() ? row.text("stack") : stack;
  if (run.stack_name.empty()) run.stack_name = kDefaultStack, run.assumed["stack"] = "default";
  run.machine_name = machine.empty() ? machine_for(row) : machine;
  if (run.machine_name.empty()) {
    run.refused = device_refusal(row);
    return run;
  }
  if (stack.empty() && !is_name_of(run.stack_name, catalogue_stack_names())) {
    run.refused = fmt::format("stack '{}' is not in the catalogue (known: {})", run.stack_name,
                              fmt::join(catalogue_stack_names(), ", "));
    return run;
  }
  run.machine = load_machine(run.machine_name);
  run.stack = load_stack(run.stack_name);
  run.refused = read_details(row, run);
  return run;
}

}  // namespace foresail
