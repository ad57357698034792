// Logging to standard error, so that standard output stays free for results. Messages are fmt-formatted.
#pragma once

#include <fmt/format.h>

#include <string>

namespace foresail {

enum class LogLevel { debug, info, warning, error };

/// Sets the least level that is shown, and a prefix such as "rank 3" (empty: none). Called once by cli/.
void configure_log(LogLevel least, const std::string& prefix);
void log_message(LogLevel level, const std::string& message);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace foresail
