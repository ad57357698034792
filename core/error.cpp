#include "core/error.h"

#include <utility>

namespace foresail {

Error::Error(Exit exit, std::string what, std::string cause, std::string mend)
    : std::runtime_error(what + ": " + cause + (mend.empty() ? "" : "; " + mend)),
      exit_(exit),
      thing_(std::move(what)),
      cause_(std::move(cause)),
      mend_(std::move(mend)) {}

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
