#pragma once

#include "bucket.hpp"
#include "cuda/quad.cuh"
#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/initial_values.hpp"
#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"
#include "table_rows_format.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// What is known of a row besides its values.
struct alignas(8) DeviceRowNotes {
  std::uint32_t count;  ///< Lookups.
  std::uint32_t step;   ///< Of the last lookup.
};

/// Where rows of one precision are. A row has its vector, and then its state.
struct StoreView {
  std::byte* rows = nullptr;
  DeviceRowNotes* notes = nullptr;
  float* row_states = nullptr;  ///< Of a row-wise optimizer.
  std::uint32_t row_bytes = 0, state_begin = 0;
};

/// The rows of a table, for kernels.
struct RowsView {
  StoreView hot{}, cold{};  ///< float32 and bfloat16.
  std::uint32_t dim = 0, state_size = 0;
  bool is_row_wise = false;

  [[nodiscard]] HEADWAY_HOST_DEVICE StoreView const& store(Precision precision) const {
    return precision == Precision::kFloat32 ? hot : cold;
  }
  [[nodiscard]] __device__ std::byte* row(RowId id) const {
    bool const is_hot = precision_of(id) == Precision::kFloat32;
    return (is_hot ? hot.rows : cold.rows) +
           std::uint64_t{plain_number(id)} * (is_hot ? hot.row_bytes : cold.row_bytes);
  }
  [[nodiscard]] __device__ DeviceRowNotes& notes(RowId id) const {
    return (precision_of(id) == Precision::kFloat32 ? hot.notes : cold.notes)[plain_number(id)];
  }
  [[nodiscard]] __device__ float* state(RowId id) const {
    bool const is_hot = precision_of(id) == Precision::kFloat32;
    return reinterpret_cast<float*>(row(id) + (is_hot ? hot.state_begin : cold.state_begin));
  }
  /// Of a row-wise optimizer.
  [[nodiscard]] __device__ float& row_state(RowId id) const {
    return (precision_of(id) == Precision::kFloat32 ? hot.row_states : cold.row_states)[plain_number(id)];
  }
  [[nodiscard]] __device__ float* vector(RowId id) const { return reinterpret_cast<float*>(row(id)); }
  [[nodiscard]] __device__ Bfloat16* cold_vector(RowId id) const { return reinterpret_cast<Bfloat16*>(row(id)); }

  /// Columns from 4 * `quad` on; what is beyond dim is 0.
  [[nodiscard]] __device__ Quad read(RowId id, std::uint32_t quad) const {
    if (precision_of(id) == Precision::kFloat32) return read_quad(vector(id), quad, dim);
    Quad values{};
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (4 * quad + i < dim) values[i] = widen(cold_vector(id)[4 * quad + i]);
    }
    return values;
  }
  /// Rounds by `round(value, i)` where the row is cold.
  template <class Round>
  __device__ void write(RowId id, std::uint32_t quad, Quad const& values, Round round) const {
    if (precision_of(id) == Precision::kFloat32) {
      write_quad(vector(id), quad, dim, values);
      return;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (4 * quad + i < dim) cold_vector(id)[4 * quad + i] = round(values[i], i);
    }
  }
  /// To the nearest where it is cold.
  __device__ void write(RowId id, std::uint32_t quad, Quad const& values) const {
    write(id, quad, values, [](float value, std::uint32_t) { return round_to_nearest(value); });
  }
  /// By words that depend on key, step and column alone where it is cold.
  __device__ void write_at_random(RowId id, std::uint32_t quad, Key key, std::uint64_t step, Quad const& values) const {
    if (precision_of(id) == Precision::kFloat32) {
      write_quad(vector(id), quad, dim, values);
      return;
    }
    auto words = rounding_words(key, quad / 2, step);
    if (quad % 2 == 1) words = {words[2], words[3]};  // Without an index that is not known, words are in registers.
    write(id, quad, values,
          [&](float value, std::uint32_t i) { return round_stochastically(value, rounding_bits(words, i)); });
  }
  [[nodiscard]] HEADWAY_HOST_DEVICE std::uint32_t num_quads() const { return (dim + 3) / 4; }
};

}  // namespace headway::embedding
