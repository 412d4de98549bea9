// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/element_type.hpp"
#include "headway/kernels/executor.hpp"
#include "headway/kernels/jagged_segments.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::kernels {

// Sums of rows. 16-bit elements are accumulated in float32. Sums have one order, so results are bitwise reproducible;
// the order differs between the CPU and a device.

/// Rows of several samples, one after the other: sample b has the rows offsets[b] to offsets[b + 1].
struct JaggedRows {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_samples = 0, num_rows = 0, num_columns = 0;
  std::int64_t const* offsets = nullptr;  ///< (num_samples + 1), from 0, not descending, ending with num_rows.
  void const* values = nullptr;           ///< (num_rows, num_columns)
};

enum class SampleReduction : std::uint8_t {
  kSum,
  kMean,  ///< Zero for a sample without rows.
};

/// Computes out[b] = sum or mean of the rows of sample b.
/// @param out (num_samples, num_columns)
/// @throws std::invalid_argument if offsets do not fit the rows
void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out, Executor const& executor);

/// Same on a device, in two launches: sums over chunks of rows, then sums of the chunks for samples that span several.
/// Work is cut by rows and ends of samples, so a long sample, or many empty ones, are shared by many threads.
/// @param scratch reduce_samples_scratch_bytes() bytes; in use until the stream has passed the call
void reduce_samples_async(JaggedRows const& rows, SampleReduction reduction, void* out, void* scratch,
                          CudaStream stream);
[[nodiscard]] std::int64_t reduce_samples_scratch_bytes(JaggedRows const& rows);

/// Computes out[n] = values[n] + dense[b][i] for row i of sample b. Rows from max_length on are copied unchanged.
/// @param dense (num_samples, max_length, num_columns)
/// @param out (num_rows, num_columns)
/// @throws std::invalid_argument if offsets do not fit the rows
void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out, Executor const& executor);
void add_dense_async(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out, CudaStream stream);

/// CSR map from each entry of a list to its copies: entry e was copied to the indices csr_indices[csr_offsets[e]] to
/// csr_indices[csr_offsets[e + 1] - 1]. If both are null, entry e was copied to index e.
struct ListCopies {
  std::int64_t const* csr_offsets = nullptr;
  std::int64_t const* csr_indices = nullptr;
};

/// Items (F, B) that were copied to items (F', B'): item (f, b) went to (f', b') for all copies f' of f and b' of b.
/// Item (f, b) is the list of rows of feature f in sample b; items lie feature by feature.
///
/// Example: one feature, samples {a, b} with 2 and 1 rows, and sample a used twice: B' = 3 copied samples {a, b, a}.
/// Then samples.csr_offsets = {0, 2, 3} and csr_indices = {0, 2, 1}, offsets = {0, 2, 3}, copied_offsets = {0, 2, 3,
/// 5}, and the sum of row 0 is copy 0 plus copy 3.
struct CopiedItems {
  std::int64_t num_features = 0, num_samples = 0;
  std::int64_t num_rows = 0;
  std::int64_t const* offsets = nullptr;  ///< (num_features * num_samples + 1): rows of the original items.

  std::int64_t num_copied_samples = 0;  ///< B'
  std::int64_t num_copied_rows = 0;
  std::int64_t const* copied_offsets = nullptr;  ///< (F' * B' + 1)
  ListCopies features{}, samples{};
};

/// Tensor whose copied rows are summed.
struct CopiedRows {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_columns = 0;
  void const* copies = nullptr;  ///< (num_copied_rows, num_columns)
  void* sums = nullptr;          ///< (num_rows, num_columns)
};

/// Computes sums[n] = sum of all copies of row n, in ascending order of indices: the backward pass of copying.
/// @throws std::invalid_argument if offsets do not fit the rows
void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors, Executor const& executor);
/// Same on a device, with one launch for up to 64 tensors.
void sum_copies_async(CopiedItems const& items, std::span<CopiedRows const> tensors, CudaStream stream);

}  // namespace headway::kernels
