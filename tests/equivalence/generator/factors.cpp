#include "tests/equivalence/generator/factors.h"

#include <array>
#include <cstdlib>

#include "core/round_up.h"
#include "program/compile.h"
#include "tests/program/small_models.h"

namespace foresail::testing {
namespace {

struct Description {
  const char* name;
  std::vector<std::string> values;
};

const std::array<Description, kFactors>& descriptions() {
  static const std::array<Description, kFactors> all{{
      {"model", {"llama", "gpt2", "qwen3", "uneven", "deep", "latent", "yarn", "mixtral", "qwen3_moe", "deepseek"}},
      {"dp", {"1", "2", "3", "4"}},
      {"tp", {"1", "2", "3", "4"}},
      {"pp", {"1", "2", "3", "4"}},
      {"context", {"cp=1", "cp=2,context=ring", "cp=4,context=ring", "cp=2,context=all_to_all"}},
      {"zero_group", {"all", "2"}},
      {"zero_stage", {"0", "1", "2", "3"}},
      {"schedule",
       {"schedule=1f1b", "schedule=gpipe", "schedule=interleaved,virtual_stages=2",
        "schedule=interleaved,virtual_stages=3", "schedule=zb-h1", "schedule=zb-v,virtual_stages=2"}},
      {"micro_batch", {"1", "2", "3"}},
      {"batch", {"12", "11"}},  // 11 sequences leave masked places in every cut but one
      {"stage_layers", {"even", "uneven"}},
      {"sequence_parallel", {"false", "true"}},
      {"kv_copies", {"no", "yes"}},
      {"experts", {"ep=1", "ep=2", "ep=4", "etp=2", "ep=2,etp=2"}},
      {"recompute",
       {"recompute=none", "recompute=selective", "recompute=full", "recompute_layers=0:full/1:selective/2:activated"}},
      {"kernels", {"fused", "unfused"}},
      {"attention", {"fused", "scores"}},
      {"overlap", {"overlap=false", "overlap=true", "overlap=true,bucket_bytes=20000"}},
      {"reduce_dtype", {"", "reduce_dtype=f64"}},
      {"accumulate_dtype", {"as made", "other"}},
      {"queues", {"concurrent", "serial"}},
  }};
  return all;
}

const std::string& text_of(const Row& row, Factor factor) { return values_of(factor)[row[factor]]; }

/// Of factors whose values are numbers. Asked some ten million times by whoever walks all rows.
int64_t number_of(const Row& row, Factor factor) {
  static const auto numbers = [] {
    std::array<std::vector<int64_t>, kFactors> all;
    for (size_t f = 0; f < kFactors; ++f) {
      for (const std::string& text : values_of(static_cast<Factor>(f)))
        all[f].push_back(std::strtoll(text.c_str(), nullptr, 10));
    }
    return all;
  }();
  return numbers[static_cast<size_t>(factor)][row[factor]];
}

const ModelSpec& model_of(const Row& row) {
  static const std::vector<ModelSpec> models = [] {
    std::vector<ModelSpec> all;
    for (const std::string& name : values_of(Factor::model)) all.push_back(small_model(name));
    return all;
  }();
  return models[row[Factor::model]];
}

int64_t context_ranks(const Row& row) { return row[Factor::context] == 0 ? 1 : row[Factor::context] == 2 ? 4 : 2; }

int64_t virtual_stages(const Row& row) {
  const int schedule = row[Factor::schedule];
  return schedule == 3 ? 3 : schedule == 2 || schedule == 5 ? 2 : 1;
}

int64_t data_ranks(const Row& row) { return number_of(row, Factor::dp) * context_ranks(row); }

int64_t micro_batches(const Row& row) {
  return divide_up(number_of(row, Factor::batch), number_of(row, Factor::dp) * number_of(row, Factor::micro_batch));
}

/// The first virtual stage, which is one of the longest, gives a layer to the last.
std::string uneven_layers(int64_t layers, int64_t stages) {
  std::vector<int64_t> counts;
  for (int64_t stage = 0; stage < stages; ++stage)
    counts.push_back(layers / stages + (stage < layers % stages ? 1 : 0));
  --counts.front();
  ++counts.back();
  std::string text;
  for (const int64_t count : counts) text += (text.empty() ? "" : "+") + std::to_string(count);
  return text;
}

/// By rules: what layer 2 drops is called otherwise where it has experts.
std::string recompute_of(const Row& row) {
  std::string text = text_of(row, Factor::recompute);
  const size_t name = text.find("activated");
  if (name != std::string::npos && is_expert_layer(model_of(row), 2)) text.insert(name, "experts.");
  return text;
}

Strategy strategy_of(const Row& row, const std::string& device) {
  const int64_t stages = number_of(row, Factor::pp) * virtual_stages(row);
  std::string text = "dp=" + text_of(row, Factor::dp) + ",tp=" + text_of(row, Factor::tp) +
                     ",pp=" + text_of(row, Factor::pp) + "," + text_of(row, Factor::context) + "," +
                     text_of(row, Factor::schedule) + ",micro_batch=" + text_of(row, Factor::micro_batch) +
                     ",zero_stage=" + text_of(row, Factor::zero_stage) + "," + recompute_of(row) + "," +
                     text_of(row, Factor::overlap) + ",sequence_parallel=" + text_of(row, Factor::sequence_parallel) +
                     "," + text_of(row, Factor::experts);
  if (row[Factor::zero_group] != 0) text += ",zero_group=" + text_of(row, Factor::zero_group);
  if (row[Factor::batch] != 0) text += ",ragged_batch=true";
  if (row[Factor::stage_layers] != 0) text += ",stage_layers=" + uneven_layers(model_of(row).layers, stages);
  if (row[Factor::reduce_dtype] != 0) text += "," + text_of(row, Factor::reduce_dtype);
  if (row[Factor::accumulate_dtype] != 0) text += ",accumulate_dtype=" + other_type(device);
  return parse_strategy(text).strategy;
}

/// A feature without effect is not a case of it. Cheap: asked before a strategy is made.
bool structure_has_effect(const Row& row) {
  const int64_t data = data_ranks(row);
  if (data * number_of(row, Factor::tp) * number_of(row, Factor::pp) > kMostRanks) return false;
  const bool has_experts = model_of(row).moe.experts > 0;
  if (!has_experts && row[Factor::experts] != 0) return false;
  if (has_experts && (row[Factor::sequence_parallel] != 0) != (row[Factor::tp] != 0)) return false;  // they need it
  const int64_t stages = number_of(row, Factor::pp) * virtual_stages(row);
  const int64_t layers = model_of(row).layers;
  if ((number_of(row, Factor::tp) > model_of(row).kv_heads) != (row[Factor::kv_copies] != 0)) return false;
  if (row[Factor::sequence_parallel] != 0 && row[Factor::tp] == 0) return false;
  if (row[Factor::zero_stage] != 0 && data == 1) return false;  // experts alone may be shared by tensor ranks
  if (row[Factor::zero_group] != 0 && (row[Factor::zero_stage] == 0 || data <= 2 || data % 2 != 0)) return false;
  if (row[Factor::batch] != 0 && number_of(row, Factor::dp) * number_of(row, Factor::micro_batch) == 1) return false;
  if (row[Factor::stage_layers] != 0) return stages > 1 && layers > stages;
  return stages <= layers;
}

}  // namespace

Job suite_job(const std::string& device, int64_t global_batch) {
  Job job = small_job(global_batch);
  job.precision = device == "reference" ? "fp64" : "fp32";
  job.optimizer.learning_rate = 1e-2;
  job.optimizer.schedule = LearningRateSchedule::constant;
  job.optimizer.warmup_steps = 2;
  job.optimizer.clip_norm = 0.25;  // clips most steps: a wrong norm is a wrong update
  return job;
}

std::string other_type(const std::string& device) { return device == "reference" ? "f32" : "f64"; }

const char* name_of(Factor factor) { return descriptions()[static_cast<size_t>(factor)].name; }

const std::vector<std::string>& values_of(Factor factor) { return descriptions()[static_cast<size_t>(factor)].values; }

Experiment experiment_of(const Row& row, const std::string& device) {
  Experiment experiment;
  experiment.model = model_of(row);
  experiment.job = suite_job(device, number_of(row, Factor::batch));
  experiment.strategy = strategy_of(row, device);
  experiment.device = device;
  experiment.fused_kernels = row[Factor::kernels] == 0;
  experiment.unfused_attention = row[Factor::attention] != 0;
  experiment.serialise_queues = row[Factor::queues] != 0;
  return experiment;
}

bool structure_is_possible(const Row& row) {
  if (!structure_has_effect(row)) return false;
  return legal(model_of(row), suite_job("cpu", number_of(row, Factor::batch)), strategy_of(row, "cpu")).empty();
}

bool rest_is_possible(const Row& row) {
  const bool reduces = data_ranks(row) > 1;
  if (row[Factor::reduce_dtype] != 0 && !reduces) return false;
  if (row[Factor::accumulate_dtype] != 0 && micro_batches(row) == 1) return false;
  if (row[Factor::overlap] == 2 && !reduces) return false;
  if (row[Factor::overlap] == 1 && !reduces && row[Factor::pp] == 0) return false;
  if (row[Factor::queues] != 0 && row[Factor::overlap] == 0) return false;
  // Ring attention is a fused operator: scores exist whole only on ranks that hold whole sequences.
  return row[Factor::attention] == 0 || row[Factor::context] == 0 || row[Factor::context] == 3;
}

}  // namespace foresail::testing
