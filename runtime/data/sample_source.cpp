#include "runtime/data/sample_source.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/data/permutation.h"

namespace foresail {
namespace {

// The boundary between documents in [least, most] that is nearest to `wish` (0 < least <= wish <= most).
std::optional<int64_t> nearest_boundary(const TokenDataset& data, int64_t least, int64_t wish, int64_t most) {
  std::optional<int64_t> best;
  for (const int64_t begin : {data.next_document(wish), data.previous_document(wish)}) {
    if (begin < least || begin > most) continue;
    if (!best || std::abs(begin - wish) < std::abs(*best - wish)) best = begin;
  }
  return best;
}

}  // namespace

int64_t validation_begin(const TokenDataset& data, int64_t sequence_length, double validation_fraction) {
  if (!(validation_fraction >= 0 && validation_fraction < 1)) {
    throw_bad_input("validation_fraction", "is outside [0, 1)",
                    "give the part of the tokens that is held out, such as 0.02");
  }
  if (const auto begin = data.own_validation_begin()) return *begin;
  const int64_t tokens = data.tokens();
  if (validation_fraction == 0) return tokens;
  const int64_t needed = sequence_length + 1;
  if (tokens < 2 * needed) {
    throw_bad_input(data.prefix().string(),
                    "has " + std::to_string(tokens) + " tokens; one training and one validation " +
                        "sample of sequence length " + std::to_string(sequence_length) + " need " +
                        std::to_string(2 * needed),
                    "prepare more text, shorten the sequence, or set validation_fraction to 0");
  }
  const auto wish = static_cast<int64_t>(std::llround((1 - validation_fraction) * static_cast<double>(tokens)));
  const int64_t clamped = std::clamp(wish, needed, tokens - needed);
  const auto boundary = nearest_boundary(data, needed, clamped, tokens - needed);
  if (!boundary) {
    throw_bad_input(data.prefix().string(),
                    "has no document boundary that leaves a sample of sequence length " +
                        std::to_string(sequence_length) + " on both sides",
                    data.index().empty() ? "give shards named *_val_*.bin, too, or set validation_fraction to 0"
                                         : "prepare it with shorter documents (--split blank-lines), or set "
                                           "validation_fraction to 0");
  }
  return *boundary;
}

SampleSource::SampleSource(const TokenDataset& data, const SampleOptions& options, DataPart part)
    : data_(data), options_(options), part_(part) {
  if (options.sequence_length < 1) throw_bad_input("sequence_length", "is below 1", "give the tokens of one sample");
  if (options.vocabulary < 1) throw_bad_input("vocabulary", "is below 1", "give the vocabulary of the model");
  const int64_t cut = validation_begin(data, options.sequence_length, options.validation_fraction);
  begin_ = part == DataPart::training ? 0 : cut;
  end_ = part == DataPart::training ? cut : data.tokens();
  samples_ = (tokens() - 1) / options.sequence_length;
  if (samples_ < 1) {
    const bool held_out = part == DataPart::validation, by_files = data.own_validation_begin().has_value();
    throw_bad_input(
        data.prefix().string(),
        std::string("has ") + std::to_string(tokens()) + " tokens for " + (held_out ? "validation" : "training") +
            ", one sample needs " + std::to_string(options.sequence_length + 1),
        held_out && !by_files ? "set validation_fraction above 0" : "prepare more text or shorten the sequence");
  }
}

int64_t SampleSource::first_token(int64_t global_sample) const {
  ensure(global_sample >= 0, "a sample's number is not negative");
  const int64_t epoch = global_sample / samples_, position = global_sample % samples_;
  const int64_t sample = part_ == DataPart::training
                             ? Permutation(samples_, options_.seed, static_cast<uint64_t>(epoch))(position)
                             : position;
  return begin_ + sample * options_.sequence_length;
}

void SampleSource::read(int64_t global_sample, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  const int64_t length = options_.sequence_length;
  ensure(std::ssize(tokens) == length && std::ssize(targets) == length,
         "a sample has sequence_length tokens and targets");
  const int64_t first = first_token(global_sample);
  data_.read(first, tokens);
  data_.read(first + 1, targets);
  int64_t place = first;
  const auto check = [&](int32_t id) {
    if (id >= options_.vocabulary) {
      throw_bad_input(
          data_.place_of(place),
          "is id " + std::to_string(id) + ", the model's vocabulary has " + std::to_string(options_.vocabulary),
          "use the tokenizer of the model, or a model with a larger vocab_size");
    }
    ++place;
  };
  for (const int32_t id : tokens) check(id);
  check(targets.back());
  if (data_.mask() == nullptr) return;
  for (int64_t i = 0; i < length; ++i) {
    if (!data_.mask()->counts(first + 1 + i)) targets[static_cast<size_t>(i)] = kUncountedTarget;
  }
}

int64_t SampleSource::counted_targets(int64_t global_sample) const {
  if (data_.mask() == nullptr) return options_.sequence_length;
  return data_.mask()->counted(first_token(global_sample) + 1, options_.sequence_length);
}

int64_t SampleSource::document_starts(int64_t global_sample, std::span<int32_t> starts) const {
  const int64_t length = options_.sequence_length;
  ensure(std::ssize(starts) == length, "a sample has at most sequence_length documents");
  const int64_t first = first_token(global_sample);
  int64_t count = 0, at = first;
  do {
    starts[static_cast<size_t>(count++)] = static_cast<int32_t>(at - first);
    at = data_.next_document(at + 1);
  } while (at < first + length);
  return count;
}

void SampleSource::fill(int64_t position, int64_t first_row, int64_t rows, std::span<int32_t> tokens,
                        std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(options_.sequence_length);
  ensure(tokens.size() == length * static_cast<size_t>(rows) && targets.size() == tokens.size(),
         "a micro-batch has rows x sequence_length tokens");
  for (int64_t row = 0; row < rows; ++row) {
    const size_t at = length * static_cast<size_t>(row);
    read(position + first_row + row, tokens.subspan(at, length), targets.subspan(at, length));
  }
}

DataRate measure_data_rate(const SampleSource& source, int64_t first_sample, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<int32_t> tokens(static_cast<size_t>(source.sequence_length())), targets(tokens.size());
  DataRate rate;
  const auto start = Clock::now();
  do {
    source.read(first_sample + rate.samples, tokens, targets);
    ++rate.samples;
    rate.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  } while (rate.seconds < seconds);
  rate.tokens = rate.samples * source.sequence_length();
  rate.tokens_per_second = rate.seconds > 0 ? static_cast<double>(rate.tokens) / rate.seconds : 0;
  return rate;
}

}  // namespace foresail
