// How many rows the experts of a rank get. Routing decides that while a run trains; prices need a number before.
#pragma once

#include "ops/op.h"

namespace foresail {

/// Rows in use on the busiest expert rank over the mean of all of them: every collective of a layer waits for that one.
/// Stated, not measured: what a stress run sees should replace it.
inline constexpr double kExpertImbalance = 1.2;

/// The operator as the busiest rank runs it: `routed_rows` of an expert's product grow by the factor, at most to the rows
/// of the buffer (where one rank holds all experts nothing is uneven). Other kinds stay as they are: they work on whole
/// buffers or on the rows of this rank.
OpInstance on_busiest_rank(OpInstance op);

/// Whether a kind multiplies runs of rows by the weights of their experts.
bool is_expert_product(OpKind kind);

}  // namespace foresail
