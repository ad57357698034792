#include "runtime/checkpoint/inspect.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/log.h"
#include "runtime/checkpoint/elements.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/io/posix_file.h"

namespace foresail {
namespace {

// A few rows of a tensor as doubles.
void read_rows(const Checkpoint& checkpoint, const StoredTensor& tensor, const Rectangle& rows,
               std::vector<double>& out) {
  out.resize(static_cast<size_t>(rows.elements()));
  checkpoint.read(tensor, rows, [&](int64_t row, int64_t column, std::span<const std::byte> elements) {
    const auto at = static_cast<size_t>((row - rows.row_begin) * rows.columns() + column);
    widen_elements(elements, tensor.dtype,
                   std::span(out).subspan(at, elements.size() / static_cast<size_t>(size_of(tensor.dtype))));
  });
}

void compare_values(const std::vector<double>& first, const std::vector<double>& second, TensorDifference& difference) {
  for (size_t i = 0; i < first.size(); ++i) {
    const double a = first[i], b = second[i];
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double absolute = std::isnan(a - b) ? HUGE_VAL : std::abs(a - b);
    const double scale = std::max(std::abs(a), std::abs(b));
    const double relative = std::isinf(absolute) ? HUGE_VAL : absolute / scale;
    difference.maximum_absolute = std::max(difference.maximum_absolute, absolute);
    difference.maximum_relative = std::max(difference.maximum_relative, relative);
  }
}

void compare_tensors(const Checkpoint& first, const StoredTensor& in_first, const Checkpoint& second,
                     const StoredTensor& in_second, TensorDifference& difference) {
  difference.shapes_differ = in_first.shape != in_second.shape;
  if (difference.shapes_differ) return;
  const bool digested = in_first.digest != kNoDigestText && in_second.digest != kNoDigestText;
  constexpr int64_t kElementsAtOnce = int64_t{1} << 19;
  const int64_t step = std::max<int64_t>(1, kElementsAtOnce / in_first.columns());
  std::vector<double> a, b;
  for (int64_t row = 0; row < in_first.rows(); row += step) {
    const Rectangle rows{row, std::min(in_first.rows(), row + step), 0, in_first.columns()};
    read_rows(first, in_first, rows, a);
    read_rows(second, in_second, rows, b);
    compare_values(a, b, difference);
  }
  const bool same = digested ? in_first.digest == in_second.digest : difference.maximum_absolute == 0;
  difference.identical = in_first.dtype == in_second.dtype && same;
}

// Verifies slab by slab, so that one damaged piece does not hide the others.
void verify_tensors(const Checkpoint& checkpoint, CheckpointVerdict& verdict) {
  for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
    for (const Slab& slab : tensor.slabs) {
      try {
        verdict.bytes += checkpoint.verify_slab(tensor, slab);
      } catch (const Error& error) {
        if (error.exit() != Exit::bad_input) throw;
        const std::string problem = error.what();
        const bool known =
            std::find(verdict.problems.begin(), verdict.problems.end(), problem) != verdict.problems.end();
        if (!known) verdict.problems.push_back(problem);  // a lost file would repeat itself for every slab
      }
    }
    ++verdict.tensors;
  }
}

}  // namespace

void require_checkpoint(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) {
    throw_bad_input(path.string(), "is no folder", "name a step-N folder of a run");
  }
  const std::filesystem::path name = std::filesystem::canonical(path).filename();
  if (name.string().starts_with("step-") || std::filesystem::exists(path / "manifest.json")) return;
  const std::vector<CheckpointEntry> entries = list_checkpoints(path);
  if (!entries.empty()) {
    throw_bad_input(path.string(), "it is the folder of a run, not one checkpoint",
                    "name one of its checkpoints, such as " + entries.back().path.string());
  }
  const bool is_run = std::filesystem::is_directory(checkpoints_folder(path));
  throw_bad_input(path.string(), is_run ? "it is the folder of a run, without any checkpoint" : "it is no checkpoint",
                  "name a step-N folder, such as run/checkpoints/step-100");
}

CheckpointVerdict verify_checkpoint(const std::filesystem::path& path) {
  require_checkpoint(path);
  CheckpointVerdict verdict;
  verdict.path = path.string();
  try {
    const Checkpoint checkpoint(path);
    verdict.step = checkpoint.state().step;
    verdict.sealed = checkpoint.manifest().sealed;
    if (!verdict.sealed) {
      throw_bad_input(path.string(), "it was written by hand and holds no digests: nothing can be verified",
                      "foresail checkpoint import makes a checkpoint with digests of it");
    }
    verify_tensors(checkpoint, verdict);
    checkpoint.check_files();
  } catch (const Error& error) {
    if (error.exit() != Exit::bad_input) throw;
    if (verdict.problems.empty()) verdict.problems.push_back(error.what());
  }
  return verdict;
}

std::vector<CheckpointVerdict> scrub_checkpoints(const std::filesystem::path& folder) {
  require_run_folder(folder);
  std::vector<CheckpointVerdict> verdicts;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    verdicts.push_back(verify_checkpoint(entry.path));
    if (verdicts.back().passed() || !verdicts.back().sealed) continue;
    std::filesystem::path aside = entry.path.string() + ".damaged";
    for (int copy = 2; std::filesystem::exists(aside); ++copy)
      aside = entry.path.string() + ".damaged-" + std::to_string(copy);
    rename_and_sync(entry.path, aside);
    log_warning("{}: damaged, renamed to {}", entry.path.string(), aside.filename().string());
  }
  return verdicts;
}

CheckpointDifference diff_checkpoints(const std::filesystem::path& first_path,
                                      const std::filesystem::path& second_path) {
  require_checkpoint(first_path);
  require_checkpoint(second_path);
  const Checkpoint first(first_path), second(second_path);
  CheckpointDifference result;
  for (const StoredTensor& tensor : first.manifest().tensors) {
    TensorDifference difference;
    difference.tensor = tensor.full_name();
    const StoredTensor* const other = second.manifest().find(tensor.tensor, tensor.quantity);
    difference.only_in_first = other == nullptr;
    if (other != nullptr) compare_tensors(first, tensor, second, *other, difference);
    result.tensors.push_back(std::move(difference));
  }
  for (const StoredTensor& tensor : second.manifest().tensors) {
    if (first.manifest().find(tensor.tensor, tensor.quantity) != nullptr) continue;
    TensorDifference difference;
    difference.tensor = tensor.full_name();
    difference.only_in_second = true;
    result.tensors.push_back(std::move(difference));
  }
  for (const TensorDifference& difference : result.tensors) {
    result.identical = result.identical && difference.identical;
    result.maximum_absolute = std::max(result.maximum_absolute, difference.maximum_absolute);
    result.maximum_relative = std::max(result.maximum_relative, difference.maximum_relative);
  }
  return result;
}

}  // namespace foresail
