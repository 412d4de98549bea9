// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rank_context.hpp"

namespace headway::benchmarks {

/// Each function prints its points (one JSON line per set of parameters) at rank 0. All ranks must call it. Mode in
/// settings.hpp describes the measurements.
void measure_calls(RankContext const& context);
void measure_sequence(RankContext const& context);
void measure_lag_cost(RankContext const& context);
void measure_idle(RankContext const& context);
void measure_memory(RankContext const& context);
void measure_copy(RankContext const& context);

}  // namespace headway::benchmarks
