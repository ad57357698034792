#include "core/error.h"

#include <algorithm>
#include <utility>

namespace foresail {
namespace {

/// Names and values quoted from a file or a flag may hold line breaks or terminal escapes: a message stays one line.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

}  // namespace

Error::Error(Exit exit, std::string what, std::string cause, std::string mend)
    : std::runtime_error(one_line(what + ": " + cause + (mend.empty() ? "" : "; " + mend))),
      exit_(exit),
      thing_(one_line(std::move(what))),
      cause_(one_line(std::move(cause))),
      mend_(one_line(std::move(mend))) {}

void throw_bad_input(std::string what, std::string cause, std::string mend) {
  throw Error(Exit::bad_input, std::move(what), std::move(cause), std::move(mend));
}

void throw_environment(std::string what, std::string cause, std::string mend) {
  throw Error(Exit::environment_failed, std::move(what), std::move(cause), std::move(mend));
}

void ensure(bool condition, const char* invariant) {
  if (!condition) {
    throw Error(Exit::environment_failed, "internal invariant", invariant,
                "this is a defect of foresail: please report it with the command line");
  }
}

}  // namespace foresail
