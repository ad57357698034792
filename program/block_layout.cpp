#include "program/block_layout.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/round_up.h"
#include "ops/op_table.h"
#include "program/pack.h"

namespace foresail {
namespace {

/// Tensors that share one buffer.
struct Bundle {
  int64_t bytes = 0;
  int first = 0, last = 0;  ///< positions in the block's nodes, inclusive
  std::optional<Place> pin;
  bool live_out = false;
  bool carried = false;
};

bool is_volatile(TensorRole role) {
  return role == TensorRole::activation || role == TensorRole::layer_output || role == TensorRole::output_gradient ||
         role == TensorRole::input_gradient || role == TensorRole::layer_input;
}

Register register_of(PackSpace space) {
  switch (space) {
    case PackSpace::hole: return Register::saved;
    case PackSpace::carried: return Register::carried;
    case PackSpace::scratch:
    case PackSpace::unplaced: break;
  }
  return Register::scratch;
}

class Placer {
 public:
  explicit Placer(const BlockRequest& request) : request_(request), graph_(*request.graph) {}

  PlacedBlock run();

 private:
  const Node& node(size_t position) const { return graph_.nodes[request_.nodes[position].node]; }
  void find_bundles();
  void touch(int tensor, int position, bool writes);
  void merge_in_place();
  void merge(int into, int from);
  bool may_share(size_t position, int output, int input) const;
  bool pins_allow(const Bundle& target, const Bundle& source, int position) const;
  bool read_elsewhere(size_t position, int input) const;
  void pack_bundles(PlacedBlock& result);

  const BlockRequest& request_;
  const Graph& graph_;
  std::map<int, int> bundle_of_;  ///< tensor -> index
  std::vector<Bundle> bundles_;
};

void Placer::touch(int tensor, int position, bool writes) {
  if (!is_volatile(graph_.tensors[tensor].role)) return;
  const auto [entry, added] = bundle_of_.try_emplace(tensor, static_cast<int>(bundles_.size()));
  if (added) {
    Bundle bundle;
    bundle.bytes = round_up(graph_.tensors[tensor].type().bytes(), request_.alignment);
    if (const auto pin = request_.pinned.find(tensor); pin != request_.pinned.end()) bundle.pin = pin->second;
    bundle.first = writes ? position : 0;  // read before any write: it comes from outside
    bundle.carried = request_.carried.count(tensor) != 0;
    bundle.live_out = bundle.carried || request_.live_out.count(tensor) != 0;
    bundles_.push_back(bundle);
  }
  Bundle& bundle = bundles_[entry->second];
  bundle.last = bundle.live_out ? static_cast<int>(request_.nodes.size()) : std::max(bundle.last, position);
}

void Placer::find_bundles() {
  for (size_t p = 0; p < request_.nodes.size(); ++p) {
    for (const int input : node(p).inputs) touch(input, static_cast<int>(p), false);
    for (const int output : node(p).outputs) touch(output, static_cast<int>(p), true);
  }
  // What others still need keeps its place even if this block does not look at it.
  for (const int tensor : request_.live_out) touch(tensor, 0, false);
}

bool Placer::read_elsewhere(size_t position, int input) const {
  const Node& here = node(position);
  const int bundle = bundle_of_.at(here.inputs[input]);
  for (size_t i = 0; i < here.inputs.size(); ++i) {
    const auto other = bundle_of_.find(here.inputs[i]);
    if (static_cast<int>(i) != input && other != bundle_of_.end() && other->second == bundle) return true;
  }
  return false;
}

/// Pinned places must not be alive twice at once.
bool Placer::pins_allow(const Bundle& target, const Bundle& source, int position) const {
  if (target.carried && source.pin) return false;  // nothing given outlives us
  if (!target.pin) return !source.pin || source.pin->base != Register::x_in;
  if (source.pin) return *source.pin == *target.pin;
  for (const Bundle& other : bundles_) {
    const bool same_place = other.pin && *other.pin == *target.pin && &other != &target;
    if (same_place && other.first <= position && other.last >= source.first) return false;
  }
  return true;
}

bool Placer::may_share(size_t position, int output, int input) const {
  const Node& here = node(position);
  if (input >= static_cast<int>(here.inputs.size())) return false;
  const auto from = bundle_of_.find(here.inputs[input]);
  const auto into = bundle_of_.find(here.outputs[output]);
  if (from == bundle_of_.end() || into == bundle_of_.end() || from->second == into->second) return false;
  const Bundle& source = bundles_[from->second];
  const Bundle& target = bundles_[into->second];
  if (source.last != static_cast<int>(position) || target.first != static_cast<int>(position)) return false;
  if (source.bytes != target.bytes || source.live_out || read_elsewhere(position, input)) return false;
  return pins_allow(target, source, static_cast<int>(position));
}

void Placer::merge(int into, int from) {
  Bundle& target = bundles_[into];
  Bundle& source = bundles_[from];
  target.first = std::min(target.first, source.first);
  target.last = std::max(target.last, source.last);
  target.carried |= source.carried;
  if (!target.pin) target.pin = source.pin;
  source.bytes = 0;
  for (auto& [tensor, bundle] : bundle_of_) {
    if (bundle == from) bundle = into;
  }
}

void Placer::merge_in_place() {
  for (size_t p = 0; p < request_.nodes.size(); ++p) {
    const Node& here = node(p);
    if (here.collective == NodeCollective::all_reduce_tensor || here.collective == NodeCollective::all_reduce_context) {
      ensure(may_share(p, 0, 0), "a partial sum is read by its all-reduce alone");
      merge(bundle_of_.at(here.outputs[0]), bundle_of_.at(here.inputs[0]));
      continue;
    }
    if (here.collective != NodeCollective::none) continue;
    std::set<int> done;
    for (const InPlace& pair : info(here.kind).in_place) {
      if (pair.output >= static_cast<int>(here.outputs.size()) || done.count(pair.output) != 0) continue;
      if (!may_share(p, pair.output, pair.input)) continue;
      merge(bundle_of_.at(here.outputs[pair.output]), bundle_of_.at(here.inputs[pair.input]));
      done.insert(pair.output);
    }
  }
}

void Placer::pack_bundles(PlacedBlock& result) {
  std::vector<PackItem> items;
  std::vector<int> owners;  // bundle, or -1 - position for a workspace
  const auto add_item = [&](PackItem item, int owner) {
    items.push_back(item);
    owners.push_back(owner);
  };
  for (size_t b = 0; b < bundles_.size(); ++b) {
    const Bundle& bundle = bundles_[b];
    if (bundle.bytes == 0) continue;
    PackItem item{bundle.bytes, bundle.first, bundle.last, bundle.carried};
    if (bundle.pin) {
      const bool in_hole = bundle.pin->base == Register::saved || bundle.pin->base == Register::x_in;
      if (!in_hole || request_.hole_bytes == 0) continue;  // outside what is packed here
      item.space = PackSpace::hole;
      item.offset = bundle.pin->offset;
    }
    add_item(item, static_cast<int>(b));
  }
  for (const auto& [position, bytes] : request_.workspace) {
    if (bytes == 0) continue;
    add_item({round_up(bytes, request_.alignment), position, position}, -1 - position);
  }
  ensure(fixed_items_fit(items), "tensors pinned to one place never live at the same time");
  const PackResult packed = pack(items, request_.hole_bytes);
  result.scratch_end = packed.scratch_end;
  result.carried_end = packed.carried_end;
  for (size_t i = 0; i < items.size(); ++i) {
    const PackItem& item = packed.items[i];
    const MemoryKind memory = item.carried ? MemoryKind::activations : MemoryKind::scratch;
    const Place place{register_of(item.space), item.offset, memory};
    if (owners[i] < 0) {
      result.workspace_places[-1 - owners[i]] = place;
    } else if (!bundles_[owners[i]].pin) {
      bundles_[owners[i]].pin = place;
    }
  }
}

PlacedBlock Placer::run() {
  find_bundles();
  merge_in_place();
  PlacedBlock result;
  pack_bundles(result);
  for (const auto& [tensor, place] : request_.pinned) result.places[tensor] = place;
  for (const auto& [tensor, bundle] : bundle_of_) result.places[tensor] = *bundles_[bundle].pin;
  return result;
}

}  // namespace

PlacedBlock place_block(const BlockRequest& request) { return Placer(request).run(); }

}  // namespace foresail
