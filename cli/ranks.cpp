#include "cli/ranks.h"

#include "core/parallel.h"

namespace foresail {

Exit run_ranks(const RankEnvironment& environment, const std::function<LaunchRequest()>& request,
               const RankBody& body) {
  if (environment.ranked) {
    const auto communicator = make_mpi_communicator();
    return body(*communicator);
  }
  LaunchRequest launch = request();
  if (launch.ranks > 1) {
    if (launch.arguments.empty()) launch.arguments = own_arguments();
    return launch_ranks(launch);
  }
  set_thread_count(launch.threads_per_rank);
  return run_rank_main(environment, [&] {
    const auto communicator = make_local_communicator();
    return body(*communicator);
  });
}

}  // namespace foresail
