// What earlier lives of a run left in its events.
#pragma once

#include <cstdint>
#include <filesystem>

namespace foresail {

/// How often the run was resumed, by its events.jsonl; 0 if there is none.
int64_t count_resumes(const std::filesystem::path& events);

}  // namespace foresail
