#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/element_type.hpp"
#include "headway/kernels/jagged_segments.hpp"
#include "headway/kernels/run_tasks.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::kernels {

// Sums of rows. Elements of 16 bits are added up in float32. Sums are taken in one order, so they are the same bits
// each time; that order differs between the CPU and a device.

/// Rows of several samples one after the other: those of sample b from offsets[b] to offsets[b + 1].
struct JaggedRows {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_samples = 0, num_rows = 0, num_columns = 0;
  std::int64_t const* offsets = nullptr;  ///< (num_samples + 1), from 0, not descending, ending with num_rows.
  void const* values = nullptr;           ///< (num_rows, num_columns)
};

enum class SampleReduction : std::uint8_t {
  kSum,
  kMean,  ///< Zero of a sample without rows.
};

/// out[b] = the sum or mean of the rows of sample b.
/// @param out (num_samples, num_columns)
/// @throws std::invalid_argument if offsets do not fit the rows
void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out, RunTasks const& run_tasks);

/// On a device, in two launches: sums over chunks of rows, then of the chunks of samples that lie in several. Cut by
/// rows and ends of samples, so that many threads share a long sample, or many empty ones.
/// @param scratch of so many bytes as scratch_bytes() says; needed until the stream is through
void reduce_samples_async(JaggedRows const& rows, SampleReduction reduction, void* out, void* scratch,
                          CudaStream stream);
[[nodiscard]] std::int64_t reduce_samples_scratch_bytes(JaggedRows const& rows);

/// out[n] = values[n] + dense[b][i] for row i of sample b; rows past max_length as they are.
/// @param dense (num_samples, max_length, num_columns)
/// @param out (num_rows, num_columns)
/// @throws std::invalid_argument if offsets do not fit the rows
void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out,
               RunTasks const& run_tasks);
void add_dense_async(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out, CudaStream stream);

/// Where copies of the entries of a list went: entry e to the places members[offsets[e]] to members[offsets[e + 1]].
/// Both null: each entry e to place e.
struct ListCopies {
  std::int64_t const* offsets = nullptr;
  std::int64_t const* members = nullptr;
};

/// Items (F, B) that were copied to items (F', B'): item (f, b) to (f', b') for all places f' of f and b' of b.
struct CopiedItems {
  std::int64_t num_features = 0, num_samples = 0;
  std::int64_t num_rows = 0;
  std::int64_t const* offsets = nullptr;  ///< (num_features * num_samples + 1): rows of the items that were copied.

  std::int64_t num_copied_samples = 0;  ///< B'
  std::int64_t num_copied_rows = 0;
  std::int64_t const* copied_offsets = nullptr;  ///< (F' * B' + 1)
  ListCopies features{}, samples{};
};

struct CopiedRows {
  ElementType type = ElementType::kFloat32;
  std::int64_t num_columns = 0;
  void const* copies = nullptr;  ///< (num_copied_rows, num_columns)
  void* sums = nullptr;          ///< (num_rows, num_columns)
};

/// sums[n] = the sum of all copies of row n, in ascending order of places: what copying does to gradients.
/// @throws std::invalid_argument if offsets do not fit the rows
void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors, RunTasks const& run_tasks);
/// One launch for up to 64 tensors.
void sum_copies_async(CopiedItems const& items, std::span<CopiedRows const> tensors, CudaStream stream);

}  // namespace headway::kernels
