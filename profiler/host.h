// What this host is: the identity that tells whether measurements of another day still hold.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "comm/communicator.h"
#include "spec/machine.h"

namespace foresail {

int cores_of_host();  ///< that this process may use; a rank that is bound to its cores sees only those
std::string cpu_model();
int64_t memory_of_host_bytes();
int64_t last_level_cache_bytes();

/// Foresail and its compiler, libraries, kernel: what changes durations when it changes.
std::map<std::string, std::string> versions(const Communicator& communicator);

/// Name, processor, time of day; no measurement.
Machine describe_host();

/// Whether measurements stored in `stored` may be mixed with new ones of `current`.
bool same_host(const Machine& stored, const Machine& current);

}  // namespace foresail
