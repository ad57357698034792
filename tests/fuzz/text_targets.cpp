#include "models/model_spec.h"
#include "program/check.h"
#include "program/compile.h"
#include "program/program.h"
#include "runtime/data/prepare.h"
#include "runtime/metrics/metrics_log.h"
#include "spec/job.h"
#include "spec/machine.h"
#include "spec/plan.h"
#include "spec/strategy.h"
#include "tests/fuzz/targets.h"

namespace foresail {
namespace {

constexpr const char* kSource = "input";

std::vector<std::string> model_examples() {
  std::vector<std::string> examples;
  for (const char* name : {"gpt2", "llama-3.1-405b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b"}) {
    examples.push_back(write_model_config(load_model(name)));
  }
  return examples;
}

// What `foresail model` and the planner compute first from a config.
void use_model(const std::string& content) {
  const ModelSpec model = parse_model_config(content, kSource);
  parameter_count(model);
  matrix_parameters(model);
  training_flops_per_token(model, 1024);
  write_model_config(model);
}

Job small_job() {
  Job job;
  job.model = "bytes-llama-11m";
  job.sequence_length = 32;
  job.global_batch = 4;
  job.steps = 10;
  return job;
}

void use_job(const std::string& content) {
  const Job job = job_from_json(content, kSource);
  precision_of(job);
  learning_rate_at(job.optimizer, 3, 10);
  job_to_json(job);
}

void use_program(const std::string& content) {
  const Program program = read_program(content, kSource);
  check_program(program);
}

std::string plan_example() {
  Plan plan;
  plan.foresail_version = "0.1.0";
  plan.job = small_job();
  plan.model_name = plan.job.model;
  plan.model_config = write_model_config(load_model(plan.job.model));
  plan.machine_name = "here";
  plan.program_digests = {std::string(32, 'a')};
  plan.steps = 10;
  return plan_to_json(plan);
}

std::string program_example() {
  const ModelSpec model = load_model("bytes-llama-11m");
  Strategy strategy;
  strategy.micro_batch = 1;
  return dump_program(compile(model, small_job(), strategy, Target{}, 0).train);
}

std::vector<std::string> machine_examples() {
  std::vector<std::string> examples;
  for (const std::string& name : catalogue_machine_names()) examples.push_back(machine_to_json(load_machine(name)));
  return examples;
}

std::vector<std::string> stack_examples() {
  std::vector<std::string> examples;
  for (const std::string& name : catalogue_stack_names()) examples.push_back(stack_to_json(load_stack(name)));
  return examples;
}

}  // namespace

std::vector<FuzzTarget> text_targets() {
  StepLine line;
  line.step = 12;
  line.mfu = 0.3;
  return {
      {"model config", Content::json, model_examples(), use_model},
      {"job", Content::json, {job_to_json(small_job())}, use_job},
      {"plan", Content::json, {plan_example()}, [](const std::string& c) { plan_to_json(plan_from_json(c, kSource)); }},
      {"machine", Content::json, machine_examples(),
       [](const std::string& c) { machine_to_json(machine_from_json(c, kSource)); }},
      {"stack", Content::json, stack_examples(),
       [](const std::string& c) { stack_to_json(stack_from_json(c, kSource)); }},
      {"program", Content::json, {program_example()}, use_program},
      {"strategy", Content::bytes, {to_text(Strategy{})}, [](const std::string& c) { parse_strategy(c); }},
      {"metrics line",
       Content::json,
       {step_line_to_json(line)},
       [](const std::string& c) { step_line_from_json(c, kSource); }},
      {"JSONL line",
       Content::json,
       {R"({"text": "caf\u00e9", "id": [1, 2]})", R"({"prompt": "2 + 2 =", "completion": " 4", "id": 7})"},
       [](const std::string& c) { document_of_json_line(c, kSource); }},
      tokenizer_target(),
  };
}

}  // namespace foresail
