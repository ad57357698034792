// Devices, nodes, links, prices and (if profiled) measured tables: machine files (schema foresail.machine/1).
// A catalogue machine carries datasheet figures, a profiled one what was measured on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace foresail {

/// A figure and where it comes from. Value 0 with an empty source: not known.
struct Sourced {
  double value = 0;
  std::string source;
};

struct DeviceSpec {
  std::string name;                                      ///< "A100-SXM-80GB", "cpu"
  std::map<std::string, Sourced> peak_flops_per_second;  ///< by dtype name, dense
  Sourced memory_bytes;
  Sourced memory_bytes_per_second;
  Sourced multiprocessors;  ///< SMs; 0 for CPUs
  Sourced watts;
};

/// Links by the smallest span that holds a group.
struct LinkSpec {
  Sourced bytes_per_second;  ///< per device, one direction
  Sourced latency_seconds;   ///< of one step of a ring or one message; a collective's fixed cost is the stack's
};

/// A measured duration: the median of repeated runs with its spread (half the 10-90 % range, relative).
struct Measurement {
  double seconds = 0;
  double spread = 0;
  int32_t samples = 0;
};

/// One profile table: everything measured with `ranks` ranks of `threads` threads active at once.
struct ProfileTable {
  int32_t ranks = 1, threads = 1;
  std::map<std::string, Measurement> ops;              ///< alone, by op signature
  std::map<std::string, Measurement> ops_in_sequence;  ///< inside replayed blocks, by op signature
  /// By "kind/group_size/bytes": all_reduce, all_gather, reduce_scatter, broadcast, send (one message).
  std::map<std::string, Measurement> collectives;
  double copy_bytes_per_second = 0;  ///< stream copy, all ranks active (read + written)
  double peak_flops_per_second = 0;  ///< best f32 GEMM of one rank, all ranks active
};

struct Machine {
  std::string name;
  std::string kind = "catalogue";  ///< "catalogue" or "profiled"
  DeviceSpec device;
  int64_t devices = 1;  ///< in all
  int64_t devices_per_node = 1;
  LinkSpec intra_node, inter_node;
  Sourced usd_per_device_hour;
  Sourced failures_per_device_day;
  Sourced disk_write_bytes_per_second, disk_read_bytes_per_second;
  Sourced data_read_tokens_per_second;
  // Profiled machines.
  int32_t cores = 0;
  std::string host, cpu_model, profiled_at;
  std::map<std::string, std::string> versions;  ///< of everything that matters: compiler, oneDNN, MPI, kernel
  std::vector<ProfileTable> tables;
  std::map<std::string, int64_t> workspace_bytes;  ///< asked for by libraries, by op signature
  int64_t framework_bytes = 0, framework_bytes_spread = 0;
};

/// MACHINE on the command line: a catalogue name or a path. Throws bad_input.
Machine load_machine(const std::string& name_or_path);
Machine machine_from_json(const std::string& text, const std::string& source);
std::string machine_to_json(const Machine& machine);
std::vector<std::string> catalogue_machine_names();

/// The switches and constants of a software stack (schema foresail.stack/1).
struct Stack {
  std::string name;
  std::vector<std::string> sources;
  std::string attention = "flash";  ///< "flash" or "unfused"
  std::string recompute_default = "none";
  bool sequence_parallel_default = false;
  bool data_parallel_overlap = false;
  bool tensor_parallel_overlap = false;
  bool fused_kernels = true;
  std::string precision = "fp16";
  /// Fraction of peak that a large matrix product reaches, of memory bandwidth that element-wise kernels reach, of the
  /// NIC sum that collectives reach; seconds per kernel launch.
  double matrix_efficiency = 1, memory_efficiency = 0.85, inter_node_efficiency = 1, launch_seconds = 0;
  /// Fraction of the links inside a node that collectives reach; fixed seconds of one collective.
  double intra_node_efficiency = 1, collective_seconds = 0;
  std::map<std::string, std::string> switch_sources;    ///< by switch, from the file
  std::map<std::string, std::string> constant_sources;  ///< what each constant was fitted on
};

/// STACK on the command line: a name of spec/stacks or a path. Throws bad_input.
Stack load_stack(const std::string& name_or_path);
Stack stack_from_json(const std::string& text, const std::string& source);
std::string stack_to_json(const Stack& stack);
std::vector<std::string> catalogue_stack_names();

}  // namespace foresail
