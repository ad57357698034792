// The private folder of one run, through which ranks tell the launcher what mpirun cannot: an error in three parts, the
// outcome, readiness; and the pipes of rank 0's output. On hosts where the folder does not exist an error travels as
// one marked line of standard error instead.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace foresail {

inline constexpr const char* kChannelVariable = "FORESAIL_RANK_CHANNEL";
inline constexpr const char* kTerminalVariable = "FORESAIL_RANK_TERMINAL";

struct RankError {
  int rank = 0;
  Exit exit = Exit::environment_failed;
  std::string what, cause, mend;
};

// Paths within the folder.
std::string output_pipe(const std::string& channel);  ///< rank 0's standard output
std::string log_pipe(const std::string& channel);     ///< rank 0's standard error
std::string rank_log(const std::string& channel, int rank);

// Rank side.
/// The first error of a run wins. False if the folder is not there.
bool report_error(const std::string& channel, const RankError& error);
/// One line for standard error, recognised by `parse_error_line`.
std::string error_line(const RankError& error);
void report_outcome(const std::string& channel, Exit exit);
void report_ready(const std::string& channel, int rank);

// Launcher side.
std::optional<RankError> parse_error_line(std::string_view line);
std::optional<RankError> reported_error(const std::string& channel);
std::optional<Exit> reported_outcome(const std::string& channel);
bool all_ready(const std::string& channel, int ranks);
/// The last non-empty line that a rank left on its standard error; "" if none.
std::string last_words(const std::string& channel, int rank);

/// Creates the folder and pipes; removes them at the end of its life. Throws environment_failed.
class ChannelFolder {
 public:
  ChannelFolder();
  ~ChannelFolder();
  ChannelFolder(const ChannelFolder&) = delete;
  ChannelFolder& operator=(const ChannelFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace foresail
