// A Device and a Communicator that write down what the executor asks of them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"
#include "kernels/device.h"

namespace foresail::testing {

/// One kernel run, as the kernel saw it.
struct RecordedRun {
  OpKind kind{};
  std::vector<void*> inputs, outputs;
  void* workspace = nullptr;
  KernelContext context;
};

class RecordingDevice final : public Device {
 public:
  std::vector<RecordedRun> runs;
  std::map<OpKind, int64_t> workspace;  ///< that bound kernels of a kind ask for
  int binds = 0;
  bool record = true;

  std::string_view name() const override { return "recording"; }
  bool supports(OpKind, DType) const override { return true; }
  int64_t workspace_bytes(const OpInstance& op) override { return workspace.count(op.kind) ? workspace[op.kind] : 0; }
  std::unique_ptr<Kernel> bind(const OpInstance& op) override {
    ++binds;
    return std::make_unique<RecordingKernel>(*this, op.kind);
  }

 private:
  class RecordingKernel final : public Kernel {
   public:
    RecordingKernel(RecordingDevice& device, OpKind kind) : device_(device), kind_(kind) {}
    void run(const KernelArguments& a) override {
      if (!device_.record) return;
      device_.runs.push_back(
          {kind_, {a.inputs.begin(), a.inputs.end()}, {a.outputs.begin(), a.outputs.end()}, a.workspace, a.context});
    }
    int64_t workspace_bytes() const override {
      const auto found = device_.workspace.find(kind_);
      return found == device_.workspace.end() ? 0 : found->second;
    }

   private:
    RecordingDevice& device_;
    OpKind kind_;
  };
};

/// "all_reduce group=1 count=12", "send peer=3 tag=5 bytes=64", ...
class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  std::vector<std::string> calls;
  std::vector<const void*> addresses;  ///< of the parts of gathers and scatters
  std::vector<std::vector<int>> groups;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool concurrent() const override { return false; }
  void create_groups(const std::vector<std::vector<int>>& list) override { groups = list; }
  int group_rank(GroupId group) const override {
    const auto& members = groups[static_cast<size_t>(group)];
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank_) return static_cast<int>(i);
    }
    return -1;
  }
  int group_size(GroupId group) const override { return static_cast<int>(groups[static_cast<size_t>(group)].size()); }
  void all_reduce(void*, int64_t count, DType, ReduceKind, GroupId group) override {
    note("all_reduce", "group", group, "count", count);
  }
  void all_gather(const void* input, void*, int64_t count, DType, GroupId group) override {
    addresses.push_back(input);
    note("all_gather", "group", group, "count", count);
  }
  void reduce_scatter(const void*, void* output, int64_t count, DType, GroupId group) override {
    addresses.push_back(output);
    note("reduce_scatter", "group", group, "count", count);
  }
  void all_to_all(const void*, void*, int64_t count, DType, GroupId group) override {
    note("all_to_all", "group", group, "count", count);
  }
  void ring_shift(const void*, void*, int64_t bytes, GroupId group) override {
    note("ring_shift", "group", group, "bytes", bytes);
  }
  void broadcast(void*, int64_t, int, GroupId) override { calls.push_back("broadcast"); }
  void barrier(GroupId) override { calls.push_back("barrier"); }
  Request send(const void*, int64_t, int peer, int tag) override {
    note("send", "peer", peer, "tag", tag);
    return next_++;
  }
  Request receive(void*, int64_t, int peer, int tag) override {
    note("receive", "peer", peer, "tag", tag);
    return next_++;
  }
  void wait(Request request) override { calls.push_back("wait " + std::to_string(request)); }
  [[noreturn]] void abort(const std::string& message) override { throw_environment("recording", message, ""); }
  std::string description() const override { return "recording"; }

 private:
  void note(const char* what, const char* a, int64_t x, const char* b, int64_t y) {
    calls.push_back(std::string(what) + " " + a + "=" + std::to_string(x) + " " + b + "=" + std::to_string(y));
  }
  int rank_, size_;
  Request next_ = 0;
};

}  // namespace foresail::testing
