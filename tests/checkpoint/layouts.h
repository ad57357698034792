// Every way in which a plan may cut a model, made by hand: ZeRO stages and groups, virtual stages, copies of KV heads,
// padding. What program/ lays out is another matter; here only the rectangles are to be as awkward as its own.
#pragma once

#include <string>

#include "tests/checkpoint/fixture.h"

namespace foresail {

struct Layout {
  std::string name;
  int pp = 1, virtual_stages = 1, data = 1, tp = 1;
  int zero_stage = 0, zero_group = 0;
  bool turned = false;  ///< virtual stage 2 pp - 1 - s on stage s, as ZB-V has it: first and last share a rank

  int ranks() const { return pp * data * tp; }
  int shard() const { return zero_stage == 0 ? 1 : zero_group == 0 ? data : zero_group; }
};

/// What `rank` = (stage * data + data rank) * tp + tensor rank holds of a model of five layers: an embedding of 23 rows
/// behind a table of positions, tied to a head with a norm; per layer a fused matrix and two KV heads cut by rows, a
/// projection of 10 columns cut by columns with padding, and a norm that all tensor ranks hold.
RankMemory memory_of(const Layout& layout, int rank, DType dtype = DType::f32);

/// Elements of one quantity of that model.
inline constexpr int64_t kLayoutModelElements = 7 * 8 + 23 * 8 + 8 + 5 * (12 * 8 + 4 * 8 + 8 * 10 + 8);

}  // namespace foresail
