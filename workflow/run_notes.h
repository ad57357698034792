// Names of what a run writes into its checkpoints' notes for other verbs to find.
#pragma once

namespace foresail {

inline constexpr const char* kTokenizerNote = "tokenizer";
inline constexpr const char* kTokenizerDigestNote = "tokenizer_digest";
inline constexpr const char* kEndOfDocumentNote = "end_of_document";
inline constexpr const char* kRestartsNote = "restarts";

}  // namespace foresail
