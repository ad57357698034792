// Names of what a run writes into its checkpoints' notes for other verbs to find.
#pragma once

namespace foresail {

inline constexpr const char* kTokenizerNote = "tokenizer";
inline constexpr const char* kRestartsNote = "restarts";

}  // namespace foresail
