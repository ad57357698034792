#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace foresail {
namespace {

/// The process's logger. A library global by nature: standard error is one per process.
spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("foresail", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made.set_pattern("%T %^%l%$: %v");
    made.flush_on(spdlog::level::warn);
    return made;
  }();
  return instance;
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void configure_log(LogLevel least, const std::string& prefix) {
  std::string escaped;  // '%' starts a directive in a spdlog pattern
  for (const char c : prefix) escaped += c == '%' ? std::string("%%") : std::string(1, c);
  logger().set_level(level_of(least));
  logger().set_pattern(escaped.empty() ? "%T %^%l%$: %v" : "%T " + escaped + " %^%l%$: %v");
}

void log_message(LogLevel level, const std::string& message) {
  logger().log(level_of(level), spdlog::string_view_t(message));
}

}  // namespace foresail
