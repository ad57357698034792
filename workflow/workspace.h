// Workspace of operators that the profile did not meet: asked from the back end of this host before planning, so that a
// model that was not named to `profile` is laid out to the byte too.
#pragma once

#include "planner/search/search.h"

namespace foresail {

/// For a profiled machine with the processor of this host: adds to `request.machine.workspace_bytes` what the cpu back end
/// asks for in every strategy of the request's space, at the threads that the device count gives; entries that the profile
/// listed only grow. Does nothing for other machines: their targets hold what was measured there, or bounds.
void list_workspace(SearchRequest& request);

}  // namespace foresail
