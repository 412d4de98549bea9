// SPDX-License-Identifier: Apache-2.0

// The kernels of a CUDA BatchDevice. All calls are stream-ordered and never wait; the current device must be that of
// `stream`. Sizes are those that BatchDevice documents, and the caller has checked them.
#pragma once

#include "headway/embedding/batch_device.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

// piece_kernels.cu
void copy_async(std::span<CopyPiece const> pieces, cudaStream_t stream);
void encode_async(std::span<EncodePiece const> pieces, cudaStream_t stream);
void decode_async(std::span<DecodePiece const> pieces, cudaStream_t stream);
void add_sizes_async(std::span<SizeTerm const> terms, cudaStream_t stream);
void interleave_async(std::span<std::int64_t const* const> columns, std::size_t size, std::int64_t* out,
                      cudaStream_t stream);
/// Writes host values to device memory. `on_host` may go when the call returns.
void write_async(std::span<float const> on_host, float* to, cudaStream_t stream);

// value_kernels.cu
/// *result = number of statuses that are KeyStatus::kNoRoom.
void count_refused_async(std::span<KeyStatus const> statuses, float* result, cudaStream_t stream);
void mask_weights_async(std::span<RowId const> rows, std::span<std::uint32_t const> inverse_indices,
                        std::span<float const> weights, std::span<float> out, cudaStream_t stream);
void mask_rows_async(std::span<RowId const> rows, std::size_t dim, float* values, cudaStream_t stream);
void fill_async(std::span<float> values, float value, cudaStream_t stream);
void scale_async(std::span<float> values, float factor, cudaStream_t stream);
/// *mark = 1, or NaN if a value is not finite.
void mark_finite_async(std::span<float const> values, float* mark, cudaStream_t stream);
/// values *= *factor. @param factor device memory, outside of `values`
void scale_by_async(std::span<float> values, float const* factor, cudaStream_t stream);

// sum_of_squares.cu
void add_squares_async(KeyValues const& values, std::size_t dim, double* sum, cudaStream_t stream);

// key_values.cu
/// Concatenates the known keys of `pieces` (those below *Keys::num_known), and their values. Entries of `to` beyond
/// them are not set.
/// @param offsets (pieces + 1) Output: the place of the first key of each piece, and the number of all known keys;
///        nullptr if no piece has num_known
void concatenate_async(std::span<KeyValues const> pieces, std::size_t dim, KeyValueBlocks const& to,
                       std::uint32_t* offsets, cudaStream_t stream);
/// Selects the known keys of one table. `to` has room for all keys; entries beyond *to.size_on_device are not set.
void select_table_async(KeyValues const& from, std::span<RowId const> rows, std::size_t dim, std::uint32_t table,
                        KeyValueBlocks const& to, cudaStream_t stream);
/// *result = number of known keys if one of flags[first], flags[first + stride], ... is not 0; else 0.
void count_if_any_async(Keys const& keys, std::span<float const> flags, std::size_t first, std::size_t stride,
                        std::uint32_t* result, cudaStream_t stream);

// positions.cu
/// marks[i] = 1 if the unique key of position i has positions both below `limit` and from it on; else 0.
void mark_shared_async(std::span<std::uint32_t const> inverse_indices, std::size_t limit, float* marks,
                       cudaStream_t stream);
/// marks[i] = 1 for each i whose row is kNone.
void mark_absent_async(std::span<RowId const> rows, float* marks, cudaStream_t stream);
/// Lists the positions of marks above 0, and of those that are 0, and counts both by segment.
void split_async(std::span<float const> marks, std::span<std::size_t const> sizes, SplitPositions const& to,
                 cudaStream_t stream);
/// Copies the row at each position to the next row of `to`, or the rows of `from` to the positions.
void move_rows_async(std::span<float const> from, std::size_t width, std::span<std::uint32_t const> positions,
                     bool gathers, float* to, cudaStream_t stream);
void select_keys_async(Keys const& keys, std::span<std::uint32_t const> positions, KeyColumns const& to,
                       cudaStream_t stream);

}  // namespace headway::embedding
