#include "core/human.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace foresail {

std::string seconds_text(double seconds) {
  const double s = std::abs(seconds);
  if (s < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (s < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (s < 600) return fmt::format("{:.3g} s", seconds);
  if (s < 2 * 86400) return fmt::format("{:.3g} h", seconds / 3600);
  return figure_text(seconds / 86400) + " days";
}

std::string bytes_text(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b >= 1024.0 * 1024 * 1024) return fmt::format("{:.2f} GiB", b / (1024.0 * 1024 * 1024));
  if (b >= 1024.0 * 1024) return fmt::format("{:.1f} MiB", b / (1024.0 * 1024));
  return fmt::format("{:.1f} KiB", b / 1024);
}

std::string figure_text(double value) {
  constexpr std::array<const char*, 5> kUnits = {"", " k", " M", " B", " T"};
  constexpr double kRoundsUp = 999.5;  // three digits of it are 1000
  size_t unit = 0;
  while (std::abs(value) >= kRoundsUp && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  if (std::abs(value) >= kRoundsUp) return fmt::format("{:.0f}{}", value, kUnits[unit]);
  return fmt::format("{:.3g}{}", value, kUnits[unit]);
}

std::string counted(int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace foresail
