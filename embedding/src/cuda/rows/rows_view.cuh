// SPDX-License-Identifier: Apache-2.0

// Rows as kernels see them. A row id names a precision and an index; RowsView turns it into addresses.
//
// Reads return float32 in quads of four columns, whatever the precision, so kernels are written once. Metadata (count
// and step) lie apart from embeddings: a lookup of a known key touches 8 bytes of metadata, not a cache line of the
// row.

#pragma once

#include "bucket.hpp"
#include "cuda/runtime/quad.cuh"
#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/initial_values.hpp"
#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"
#include "table_rows_format.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Metadata of a row. 8 bytes, so that a kernel reads and writes it in one access.
struct alignas(8) DeviceRowMetadata {
  std::uint32_t count;  ///< Lookups.
  std::uint32_t step;   ///< Step of the last lookup, as numbered by the caller of Table::begin_step().
};

/// Rows of one precision, indexed by row index. A row is its embedding, followed by its optimizer state.
struct StoreView {
  std::byte* rows = nullptr;
  DeviceRowMetadata* metadata = nullptr;
  float* row_states = nullptr;                   ///< One float per row, for row-wise optimizers.
  std::uint32_t row_bytes = 0, state_begin = 0;  ///< Stride of rows; offset of the state within a row. Bytes.
};

/// The rows of a table, for kernels.
struct RowsView {
  StoreView hot{}, cold{};                ///< float32 embeddings; bfloat16 ones, for keys of few lookups.
  std::uint32_t dim = 0, state_size = 0;  ///< Floats per embedding; floats of optimizer state within a row.
  bool is_row_wise = false;

  [[nodiscard]] HEADWAY_HOST_DEVICE StoreView const& store(Precision precision) const {
    return precision == Precision::kFloat32 ? hot : cold;
  }
  [[nodiscard]] __device__ std::byte* row(RowId id) const {
    bool const is_hot = precision_of(id) == Precision::kFloat32;
    return (is_hot ? hot.rows : cold.rows) + std::uint64_t{row_index(id)} * (is_hot ? hot.row_bytes : cold.row_bytes);
  }
  [[nodiscard]] __device__ DeviceRowMetadata& metadata(RowId id) const {
    return (precision_of(id) == Precision::kFloat32 ? hot.metadata : cold.metadata)[row_index(id)];
  }
  [[nodiscard]] __device__ float* state(RowId id) const {
    bool const is_hot = precision_of(id) == Precision::kFloat32;
    return reinterpret_cast<float*>(row(id) + (is_hot ? hot.state_begin : cold.state_begin));
  }
  /// State of a row-wise optimizer: one float per row.
  [[nodiscard]] __device__ float& row_state(RowId id) const {
    return (precision_of(id) == Precision::kFloat32 ? hot.row_states : cold.row_states)[row_index(id)];
  }
  [[nodiscard]] __device__ float* embedding(RowId id) const { return reinterpret_cast<float*>(row(id)); }
  [[nodiscard]] __device__ Bfloat16* cold_embedding(RowId id) const { return reinterpret_cast<Bfloat16*>(row(id)); }

  /// Reads columns 4 * `quad` to 4 * `quad` + 3 as float32; columns from `dim` on are 0.
  [[nodiscard]] __device__ Quad read(RowId id, std::uint32_t quad) const {
    if (precision_of(id) == Precision::kFloat32) return read_quad(embedding(id), quad, dim);
    Quad values{};
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (4 * quad + i < dim) values[i] = widen(cold_embedding(id)[4 * quad + i]);
    }
    return values;
  }
  /// Writes the same columns. In a cold row, `round(value, i)` converts column i of the quad to bfloat16.
  template <class Round>
  __device__ void write(RowId id, std::uint32_t quad, Quad const& values, Round round) const {
    if (precision_of(id) == Precision::kFloat32) {
      write_quad(embedding(id), quad, dim, values);
      return;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (4 * quad + i < dim) cold_embedding(id)[4 * quad + i] = round(values[i], i);
    }
  }
  /// Writes; rounds to nearest in a cold row.
  __device__ void write(RowId id, std::uint32_t quad, Quad const& values) const {
    write(id, quad, values, [](float value, std::uint32_t) { return round_to_nearest(value); });
  }
  /// Writes; rounds stochastically in a cold row, by random words that depend on key, step and column alone.
  __device__ void write_stochastically(RowId id, std::uint32_t quad, Key key, std::uint64_t step,
                                       Quad const& values) const {
    if (precision_of(id) == Precision::kFloat32) {
      write_quad(embedding(id), quad, dim, values);
      return;
    }
    auto words = rounding_words(key, quad / 2, step);
    if (quad % 2 == 1) words = {words[2], words[3]};  // No dynamic index: `words` stays in registers.
    write(id, quad, values,
          [&](float value, std::uint32_t i) { return round_stochastically(value, rounding_bits(words, i)); });
  }
  [[nodiscard]] HEADWAY_HOST_DEVICE std::uint32_t num_quads() const { return (dim + 3) / 4; }
};

}  // namespace headway::embedding
