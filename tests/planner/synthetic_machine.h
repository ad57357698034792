// Machines for tests of the planner: a small catalogue machine whose costs are quick to state.
#pragma once

#include "models/model_spec.h"
#include "spec/job.h"
#include "spec/machine.h"

namespace foresail::test {

/// 8 devices of 1 TFLOP/s and 100 GB/s in two nodes of four; `memory_bytes` each.
inline Machine small_cluster(double memory_bytes) {
  Machine m;
  m.name = "small-cluster";
  m.device.name = "test-device";
  for (const char* type : {"f32", "bf16", "f16"}) m.device.peak_flops_per_second[type] = {1e12, "test"};
  m.device.memory_bytes = {memory_bytes, "test"};
  m.device.memory_bytes_per_second = {100e9, "test"};
  m.device.multiprocessors = {16, "test"};
  m.device.watts = {100, "test"};
  m.devices = 8, m.devices_per_node = 4;
  m.intra_node = {{20e9, "test"}, {1e-6, "test"}};
  m.inter_node = {{2e9, "test"}, {5e-6, "test"}};
  m.usd_per_device_hour = {1.5, "test"};
  m.failures_per_device_day = {0.001, "test"};
  m.disk_write_bytes_per_second = {1e9, "test"};
  m.disk_read_bytes_per_second = {1e9, "test"};
  return m;
}

inline Stack plain_stack() {
  Stack s;
  s.name = "plain";
  s.matrix_efficiency = 0.8, s.launch_seconds = 2e-6, s.collective_seconds = 5e-6;
  return s;
}

inline ModelSpec small_model() {
  ModelSpec m;
  m.name = "small", m.family = "llama";
  m.layers = 4, m.hidden = 128, m.heads = 8, m.kv_heads = 4, m.head_dim = 16, m.ffn = 352, m.vocabulary = 1000;
  m.max_positions = 256;
  return m;
}

inline Job small_job() {
  Job job;
  job.model = "small";
  job.sequence_length = 256, job.global_batch = 24, job.tokens = 100'000'000;
  return job;
}

}  // namespace foresail::test
