// What is to be trained: job.json (schema foresail.job/1). Every field has a default; flags override it; the plan embeds it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace foresail {

enum class LearningRateSchedule : uint8_t { constant, cosine, warmup_stable_decay };
/// What is left of the way down to the minimum after a share u of a warm-up-stable-decay schedule's decay.
enum class DecayShape : uint8_t {
  linear,          ///< 1 - u
  one_minus_sqrt,  ///< 1 - sqrt(u): Hagele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Durations"
};

struct OptimizerJob {
  double learning_rate = 3e-4;
  double minimum_learning_rate = 3e-5;  ///< where a decay ends; left out in a file: a tenth of its learning_rate
  LearningRateSchedule schedule = LearningRateSchedule::cosine;
  int64_t warmup_steps = 0;  ///< linear from 0
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  ///< 0: no clipping
  // Of warmup_stable_decay alone.
  DecayShape decay_shape = DecayShape::linear;
  int64_t decay_steps = 0;      ///< the last steps of the run; 0: decay_fraction of them
  double decay_fraction = 0.1;  ///< the share that MiniCPM found to be enough (Hu et al. 2024, section 4)
};

/// One stage of a batch ramp: smaller steps at the start of a run.
struct BatchRampStage {
  int64_t global_batch = 0;  ///< sequences per step
  int64_t tokens = 0;        ///< trained on in this stage, rounded up to whole steps
};

/// Dynamic loss scaling, of precision fp16 alone.
struct LossScaleJob {
  double initial = 65536;                ///< a power of two
  double minimum = 1;                    ///< gradients that overflow even here end the run, as any that are not finite
  int64_t growth_interval_steps = 2000;  ///< without overflow, then the scale doubles
};

struct Job {
  std::string model;            ///< catalogue name or path, as the user gave it
  int64_t sequence_length = 0;  ///< 0: the model's max_positions
  int64_t global_batch = 0;     ///< sequences per step; 0: proposed by the planner with its reason
  /// Ahead of `global_batch`: batches ascend and are smaller than it (spec/batch_ramp.h).
  std::vector<BatchRampStage> batch_ramp;
  int64_t tokens = 0;              ///< to train; 0: not stated
  int64_t steps = 0;               ///< derived from tokens unless stated
  std::string precision = "fp32";  ///< "fp32", "bf16", "fp16" (mixed precision), "fp64" (reference device)
  LossScaleJob loss_scale;
  bool dropout = true;  ///< apply the model's dropout; false: all probabilities 0
  OptimizerJob optimizer;
  int64_t seed = 1234;
  std::string data_path;
  int64_t dataset_bytes = 0;
  double validation_fraction = 0.02;        ///< documents held out at the end of the data
  int64_t evaluation_interval_steps = 100;  ///< 0: no evaluation
  int64_t evaluation_batches = 4;           ///< global batches per evaluation
  int64_t checkpoint_interval_steps = 100;  ///< 0: only at the end
  int64_t checkpoints_kept = 3;
  double usd_per_device_hour = 0;  ///< 0: the machine's price
};

/// The element types of "fp32", "bf16", "fp16", "fp64". Throws bad_input for an unknown precision.
Precision precision_of(const Job& job);

Job load_job(const std::filesystem::path& path);
std::string job_to_json(const Job& job);
Job job_from_json(const std::string& text, const std::string& source);

/// Learning rate of a step (1-based): a pure function, so that resuming cannot change it. Linear from 0 over the warm-up
/// (step `warmup_steps` has the full rate), then constant, or half a cosine down to the minimum at `total_steps`
/// (Loshchilov & Hutter 2017, equation 5, one period), or constant and, over the last steps, down to the minimum
/// (warm-up-stable-decay: Hu et al. 2024, MiniCPM, section 4; the decay never reaches into the warm-up); the minimum beyond.
double learning_rate_at(const OptimizerJob& optimizer, int64_t step, int64_t total_steps);

}  // namespace foresail
