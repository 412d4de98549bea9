// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/executor.hpp"
#include "headway/kernels/jagged_segments.hpp"

#include <cstdint>

namespace headway::kernels {

/// @throws std::invalid_argument unless the segments lie in order without gaps and cover all `num_rows` rows
void expect_packed(Segments const& segments, std::int64_t num_segments, std::int64_t num_rows,
                   Executor const& executor);

/// @throws std::invalid_argument if one of the segments reaches beyond the items or the rows
void expect_inside(Segments const& segments, std::int64_t num_segments, std::int64_t num_rows,
                   Executor const& executor);

}  // namespace headway::kernels
