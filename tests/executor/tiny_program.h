// A Program written by hand: embedding -> linear -> cross-entropy, weight gradient, norm, clip, AdamW. Small enough to
// check with pencil and paper, complete enough to train.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "program/program.h"

namespace foresail::testing {

struct TinySizes {
  int64_t rows = 4, hidden = 3, vocabulary = 5, micro_batches = 2;
};

/// Buffers of the tiny Program that tests look at: byte offsets in the arena.
struct TinyLayout {
  int64_t table = 0, weight = 0, gradient = 0, moment1 = 0, moment2 = 0, logits = 0;
};

struct TinyProgram {
  Program program;
  TinyLayout layout;
  TinySizes sizes;
};

/// All numbers in `dtype` (f64 for the reference device, f32 for cpu).
TinyProgram tiny_program(DType dtype, const TinySizes& sizes = {});

/// Lays out what the device asks for beside operands, at the end of the arena.
void give_workspace(TinyProgram& tiny, Device& device);

}  // namespace foresail::testing
