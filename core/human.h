// Figures as people read them: with a unit, and never in powers of ten.
#pragma once

#include <cstdint>
#include <string>

namespace foresail {

/// "1.23 ms", "4.5 s", "2.1 days".
std::string seconds_text(double seconds);
/// GiB, MiB or KiB with the unit (1 GiB = 2^30 bytes).
std::string bytes_text(int64_t bytes);
/// Three digits and a unit of thousands: "850", "40.7 k", "2.44 M", "70.6 B", "3.2 T".
std::string figure_text(double value);
/// "1 device", "8 devices".
std::string counted(int64_t count, const std::string& noun);

}  // namespace foresail
