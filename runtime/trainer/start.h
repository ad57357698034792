// How a run gets its first state: new parameters, parameters of a checkpoint, or the whole state of an earlier life,
// which must prove itself.
#pragma once

#include "runtime/checkpoint/ranks.h"
#include "runtime/trainer/loss_scaler.h"
#include "runtime/trainer/trainer.h"

namespace foresail {

struct StartState {
  int64_t step = 0;              ///< completed optimizer steps
  int64_t samples = 0;           ///< consumed by all ranks: the position in the data, whatever the batch was
  std::vector<StepLoss> losses;  ///< recorded by the checkpoint
  std::string checkpoint;        ///< resumed from; empty: none
  LossScaler loss_scaler;        ///< of the next step
  bool same_plan = true;         ///< as the one that wrote it: results must be bitwise equal
  bool same_batch = true;        ///< the job's; otherwise losses of the evaluation Program cannot be compared
  bool same_next_batch = true;   ///< of the next step; otherwise its loss cannot be compared
  std::string source_config;     ///< config.json that imported weights came with: checkpoints hand it on to an export
};

/// Collective. Throws bad_input when a checkpoint belongs to another model, dataset or seed, or is damaged.
StartState start_run(Session& session, const CheckpointRanks& ranks, const TrainerOptions& options);

/// The loss of the next training batch without dropout, as text that keeps every bit: what a checkpoint records and a
/// resume must reproduce. Collective.
std::string probe_loss(Session& session, const TrainerOptions& options, int64_t samples_consumed);

/// Throws bad_input unless `actual` reproduces `recorded`: bitwise for the same plan, otherwise within what rounding of
/// activations allows: 1e-5, and 2^-9 or 2^-6 (four units in the last place) where they are stored in f16 or bf16.
void compare_losses(const std::string& what, double recorded, double actual, bool same_plan, DType activation);

inline constexpr const char* kProbeNote = "next_batch_loss";
inline constexpr const char* kBatchNote = "global_batch";
inline constexpr const char* kNextBatchNote = "next_global_batch";  ///< of the next step: a batch ramp has others
inline constexpr const char* kLossScaleNote = "loss_scale";
inline constexpr const char* kSequenceNote = "sequence_length";  ///< samples are counted in sequences of this length

}  // namespace foresail
