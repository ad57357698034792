// The manifest of a checkpoint (schema foresail.checkpoint/1): which rectangle of which logical tensor lies where, with a
// digest per piece, and the state of the run. It is written last: a folder without a valid manifest is no checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "runtime/checkpoint/tensor_digest.h"

namespace foresail {

/// Parameter-shaped numbers kept of every tensor.
enum class Quantity : uint8_t { parameter, master, moment1, moment2 };
std::string_view name_of(Quantity quantity);
/// What is appended to a tensor's name in the data files: "", "#master", "#m", "#v".
std::string_view suffix_of(Quantity quantity);

/// One contiguous piece of a file: a rectangle of a logical tensor, row-major.
struct Slab {
  Rectangle part;
  int32_t file = 0;                 ///< index into Manifest::files
  std::string name;                 ///< of the tensor in that safetensors file
  int64_t offset = 0;               ///< of the first byte in that file
  std::vector<std::string> pieces;  ///< digests of every piece_bytes (the last may be shorter); empty: not sealed
};

/// One quantity of one logical tensor; its slabs cover it exactly once.
struct StoredTensor {
  std::string tensor;
  Quantity quantity = Quantity::parameter;
  std::vector<int64_t> shape;  ///< [rows, columns] or [n]
  DType dtype = DType::f32;
  std::string digest;  ///< of all elements in global coordinates (tensor_digest.h)
  std::vector<Slab> slabs;

  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return shape.size() > 1 ? shape[1] : 1; }
  std::string full_name() const { return tensor + std::string(suffix_of(quantity)); }
};

struct StoredFile {
  std::string name;  ///< beside the manifest
  int64_t bytes = 0;
  std::string header_digest;  ///< of everything before the first tensor
};

struct StepLoss {
  int64_t step = 0;
  double loss = 0;
  bool operator==(const StepLoss&) const = default;
};

/// Where a run stands after `step` optimizer steps, and what it belongs to.
struct RunState {
  int64_t step = 0;
  int64_t samples_consumed = 0;  ///< of the training data, by all ranks: the run's position
  uint64_t seed = 0;
  std::string foresail_version, plan_digest, dataset_identity;
  std::string model_name, model_config;      ///< the config.json, whole
  std::vector<StepLoss> losses;              ///< of the last steps, finite ones, oldest first
  std::map<std::string, std::string> notes;  ///< anything else the run wants to find again
  bool operator==(const RunState&) const = default;
};

inline constexpr int64_t kPieceBytes = int64_t{4} << 20;

/// In place of any digest where nothing was digested: a checkpoint that was written by hand.
inline constexpr const char* kNoDigestText = "none";

struct Manifest {
  RunState state;
  bool sealed = true;  ///< it holds its own digest; only one that does not may lack others
  int64_t piece_bytes = kPieceBytes;
  std::string parameters_digest;  ///< of all tensors' parameter digests, in order of name
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  ///< in order of (tensor, quantity)

  const StoredTensor* find(std::string_view tensor, Quantity quantity) const;
  int64_t data_bytes() const;  ///< sum of the files' sizes
};

inline constexpr const char* kManifestName = "manifest.json";

/// Letters, digits, '-', '_' and '.', not beginning with a dot: a file beside the one that names it.
bool is_plain_file_name(const std::string& name);

/// Throws bad_input naming `source` and the tensor: unknown file, rectangle outside its tensor, wrong number of pieces,
/// element covered twice or not at all, a name twice.
void check_manifest(const Manifest& manifest, const std::string& source);

/// The text holds a digest of itself, so that a change of any byte is noticed.
std::string manifest_to_json(const Manifest& manifest);
/// The manifest's text with the digest it should hold. manifest_to_json ends with it; tests mend altered texts with it.
std::string seal_manifest(std::string text);
/// Parses, compares the digest and checks. "none" in the place of the manifest's own digest says that nothing was digested:
/// then slabs need no pieces. Throws bad_input.
Manifest manifest_from_json(const std::string& text, const std::string& source);

/// What one rank wrote; gathered on rank 0 to make the manifest.
struct RankPart {
  std::vector<StoredFile> files;      ///< none or one
  std::vector<StoredTensor> tensors;  ///< with this rank's slabs; `digest` unused
  std::vector<ElementSum> sums;       ///< of each entry of `tensors`
};

std::string rank_part_to_json(const RankPart& part);
RankPart rank_part_from_json(const std::string& text, const std::string& source);

/// Joins the parts of all ranks; fills digests. Throws bad_input when ranks disagree or the result is not complete.
Manifest join_parts(const std::vector<RankPart>& parts, const RunState& state, int64_t piece_bytes,
                    const std::string& source);

}  // namespace foresail
