// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <cstdint>
#include <tuple>
#include <vector>

namespace headway::embedding {

/// Receive buffer, send buffer, receive splits and send splits of an all-to-all.
using AllToAllTensors = std::tuple<at::Tensor, at::Tensor, std::vector<std::int64_t>, std::vector<std::int64_t>>;

/// The arguments of one all_to_all_single() that sends rows of G merged tables to R ranks. A merged table is several
/// tables that share storage and exchanges. With one table the rows are sent in place, and splits count rows. With
/// several the buffers are flat, and splits count elements. rank_buffers.cpp has an example.
/// @param values for each merged table (rows, columns) of one type and device, rank by rank
/// @param sent, received (G, R) int64 on the CPU: rows for, and from, each rank
/// @throws base::UsageError if counts do not add up to the rows
[[nodiscard]] AllToAllTensors all_to_all_arguments(std::vector<at::Tensor> const& values, at::Tensor const& sent,
                                                   at::Tensor const& received);

/// Unpacks the receive buffer of all_to_all_arguments().
/// @param widths columns of each merged table
/// @returns for each merged table (rows, columns), rank by rank
/// @throws base::UsageError if counts do not add up to the elements
[[nodiscard]] std::vector<at::Tensor> by_table(at::Tensor const& buffer, at::Tensor const& counts,
                                               std::vector<std::int64_t> const& widths);

}  // namespace headway::embedding
