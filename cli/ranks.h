// How the verbs that need ranks run: one rank in process, several through the launcher.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/rank.h"

namespace foresail {

/// The part that every rank runs. Several ranks: called in each of them; only rank 0's output reaches the user.
using RankBody = std::function<Exit(Communicator&)>;

/// In a rank: runs `body` over MPI. Otherwise asks `request` how many ranks are needed (it checks the input on the way)
/// and runs `body` here over the local communicator if it is one, or starts them. Empty `arguments` of the request
/// become this process's own.
Exit run_ranks(const RankEnvironment& environment, const std::function<LaunchRequest()>& request, const RankBody& body);

}  // namespace foresail
