// What a training run reads: sample after sample of fixed length, in an order that is a pure function of (seed, position).
// The position of a run in its data is one integer, the number of samples consumed by all ranks together; epoch and place
// follow from it, so every plan reads the same batches and resuming needs no replay.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/data/token_dataset.h"

namespace foresail {

/// The target at a position that does not count in the loss: the kernels leave targets below 0 out.
inline constexpr int32_t kUncountedTarget = -1;

enum class DataPart : uint8_t { training, validation };

struct SampleOptions {
  int64_t sequence_length = 0;
  double validation_fraction = 0.02;  ///< of the tokens, cut between documents at the end of the data; 0: no validation
  uint64_t seed = 0;
  int64_t vocabulary = 0;  ///< of the model: ids at or above it are refused as they are read
};

/// Where the training documents end, as the position of the first validation token: where the files themselves say so
/// (validation shards), or else the boundary between documents nearest to the wished fraction that leaves both parts at
/// least sequence_length + 1 tokens; all tokens if the fraction is 0. Throws bad_input with the mend if no boundary does.
int64_t validation_begin(const TokenDataset& data, int64_t sequence_length, double validation_fraction);

/// Sample k of a part is the sequence_length + 1 consecutive tokens at k * sequence_length of its documents, which follow
/// each other: neighbours share one token, so every token but the first is a target exactly once per epoch.
/// Training samples are visited in a fresh permutation per epoch (permutation.h); validation samples in order, so that
/// evaluations of different runs and seeds compare. Safe to read from several threads; allocates nothing when read.
class SampleSource {
 public:
  /// `data` must outlive the source. Throws bad_input if a part is too short for one sample.
  SampleSource(const TokenDataset& data, const SampleOptions& options, DataPart part);

  int64_t samples() const { return samples_; }  ///< of one epoch
  int64_t tokens() const { return end_ - begin_; }
  int64_t sequence_length() const { return options_.sequence_length; }

  /// Position in the dataset of the first token of the sample that a run reads as number `global_sample` (>= 0, samples
  /// consumed so far + index in the batch).
  int64_t first_token(int64_t global_sample) const;
  /// Tokens and targets (the same, shifted by one; kUncountedTarget where the loss mask says so), sequence_length each.
  void read(int64_t global_sample, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  /// How many of the sample's targets count. Reads the mask only: every rank can afford to ask for a whole global batch.
  int64_t counted_targets(int64_t global_sample) const;
  /// Where documents begin within the sample, ascending: its first token always counts as a beginning (what precedes it is
  /// not in the sample). Writes them to the front of `starts` (sequence_length of them at most) and returns their number.
  int64_t document_starts(int64_t global_sample, std::span<int32_t> starts) const;
  /// `rows` consecutive samples of the global batch that starts at `position`, from index `first_row` in it: what one
  /// rank reads as one micro-batch. Spans hold rows * sequence_length.
  void fill(int64_t position, int64_t first_row, int64_t rows, std::span<int32_t> tokens,
            std::span<int32_t> targets) const;

 private:
  const TokenDataset& data_;
  SampleOptions options_;
  DataPart part_;
  int64_t begin_ = 0, end_ = 0;  ///< tokens of the part
  int64_t samples_ = 0;
};

struct DataRate {
  int64_t samples = 0, tokens = 0;
  double seconds = 0, tokens_per_second = 0;
};

/// Reads samples in training order from `first_sample` on, batch after batch, until `seconds` have passed (at least one
/// sample): what this process can supply alone.
DataRate measure_data_rate(const SampleSource& source, int64_t first_sample, double seconds);

}  // namespace foresail
