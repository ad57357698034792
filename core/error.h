// The one exception type of Foresail. It is thrown at the boundary that knows all three parts of a
// useful message (the thing, the cause, the mend) and caught once, in cli/.
#pragma once

#include <stdexcept>
#include <string>

namespace foresail {

/// What an error means to the caller; the value is the exit code of the `foresail` binary.
enum class Exit : int {
  done = 0,
  answer_is_no = 1,        ///< plan infeasible, stress failed, verify found damage
  bad_input = 2,           ///< bad usage or a bad file: the user can mend it
  environment_failed = 3,  ///< a rank died, a disk filled, a library is missing
  stopped = 75,            ///< stopped on request; can be resumed
};

/// One line for the user: "WHAT: CAUSE; MEND".
class Error : public std::runtime_error {
 public:
  Error(Exit exit, std::string what, std::string cause, std::string mend);

  Exit exit() const { return exit_; }
  const std::string& thing() const { return thing_; }
  const std::string& cause() const { return cause_; }
  const std::string& mend() const { return mend_; }

 private:
  Exit exit_;
  std::string thing_, cause_, mend_;
};

/// A bad file, flag or combination; exit code 2.
[[noreturn]] void throw_bad_input(std::string what, std::string cause, std::string mend);

/// The machine or another process let us down; exit code 3.
[[noreturn]] void throw_environment(std::string what, std::string cause, std::string mend);

/// A programmer's error: an invariant of this code base does not hold. Never for user input.
void ensure(bool condition, const char* invariant);

}  // namespace foresail
