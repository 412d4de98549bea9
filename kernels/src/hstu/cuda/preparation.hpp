// SPDX-License-Identifier: Apache-2.0

// Work of the preparation kernel (prepare.cuh), collected on the host: offsets to check, memory to clear.

#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <algorithm>
#include <cstdint>

namespace headway::kernels {

/// Rows to set to 0: all rows, or those behind the last offset, which belong to no sequence.
struct ClearedRows {
  /// Rows are cleared from here on: from row 0, or from the row behind the last sequence's queries or keys.
  enum class Behind : std::uint8_t { kNothing, kQueries, kKeys };

  void* data = nullptr;
  Behind behind = Behind::kNothing;
  std::int64_t num_rows = 0, heads = 1;
  std::int64_t row_stride = 0, head_stride = 0, head_units = 0;  ///< Strides and sizes, in units.
  std::int32_t unit_bytes = 16;  ///< Size of a unit: 2, 4, 8 or 16 bytes. All addresses are multiples of it.

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t units_of_row() const { return heads * head_units; }
  /// Are the rows contiguous?
  [[nodiscard]] HEADWAY_HOST_DEVICE bool are_together() const {
    return row_stride == units_of_row() && (heads == 1 || head_stride == head_units);
  }
};

/// Parameters of the preparation kernel (prepare.cuh). It checks the sequences and sets two kinds of memory to 0: rows
/// of no sequence, and memory that the kernels of the call add to.
struct HstuPreparation {
  static constexpr int kThreads = 256;
  static constexpr int kMaxCleared = 6;  ///< Capacity of `cleared`.

  HstuSequences sequences;
  float const* time_bounds = nullptr;
  std::int64_t num_time_bounds = 0;
  ClearedRows cleared[kMaxCleared];
  std::int32_t num_cleared = 0;

  explicit HstuPreparation(HstuForwardArgs const& args) : sequences(args.sequences) {
    if (!args.bias.has_time()) return;
    time_bounds = args.bias.time_bounds;
    num_time_bounds = args.bias.num_time_bounds;
  }

  /// Registers `size_bytes` bytes from `data` on for clearing. Null or an empty range is ignored.
  void clear(void* data, std::int64_t size_bytes) {
    if (data == nullptr || size_bytes == 0) return;
    std::int32_t const unit = unit_of(reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(size_bytes));
    cleared[num_cleared++] = {.data = data,
                              .num_rows = 1,
                              .row_stride = size_bytes / unit,
                              .head_stride = size_bytes / unit,
                              .head_units = size_bytes / unit,
                              .unit_bytes = unit};
  }

  /// Registers the rows of queries (or keys) behind the last offset.
  void clear_query_rows_behind(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns) {
    clear_rows_behind(args, rows, columns, ClearedRows::Behind::kQueries, sequences.num_queries);
  }
  void clear_key_rows_behind(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns) {
    clear_rows_behind(args, rows, columns, ClearedRows::Behind::kKeys, sequences.num_keys);
  }

  /// Number of blocks of threads: enough for the bandwidth of memory when everything is cleared. Rows behind the last
  /// offset get fewer blocks: usually few exist, and only the device knows how many.
  [[nodiscard]] std::int64_t num_blocks(std::int64_t num_multiprocessors) const {
    constexpr std::int64_t kUnitsOfThread = 4;
    std::int64_t units = 0, units_behind = 0;
    for (std::int32_t i = 0; i < num_cleared; ++i) {
      ClearedRows const& rows = cleared[i];
      (rows.behind == ClearedRows::Behind::kNothing ? units : units_behind) += rows.num_rows * rows.units_of_row();
    }
    auto const blocks_for = [](std::int64_t threads, std::int64_t most) {
      return std::min((threads + kThreads - 1) / kThreads, most);
    };
    return std::max({blocks_for(sequences.num_sequences, num_multiprocessors),
                     blocks_for(units / kUnitsOfThread, 8 * num_multiprocessors),
                     blocks_for(units_behind / kUnitsOfThread, 2 * num_multiprocessors), std::int64_t{1}});
  }

 private:
  /// Largest unit, up to 16 bytes, that divides every number whose bits are in `bits`.
  [[nodiscard]] static std::int32_t unit_of(std::uintptr_t bits) {
    bits |= 16;
    return static_cast<std::int32_t>(bits & (~bits + 1));
  }

  void clear_rows_behind(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns,
                         ClearedRows::Behind behind, std::int64_t num_rows) {
    std::int64_t const bytes = size_of(args.type);
    std::int64_t const head_stride = (args.num_heads > 1 ? rows.head_stride : columns) * bytes;
    std::int64_t const row_stride = rows.token_stride * bytes, head = columns * bytes;
    std::int32_t const unit = unit_of(reinterpret_cast<std::uintptr_t>(rows.data) |
                                      static_cast<std::uintptr_t>(head_stride | row_stride | head));
    cleared[num_cleared++] = {.data = rows.data,
                              .behind = behind,
                              .num_rows = num_rows,
                              .heads = args.num_heads,
                              .row_stride = row_stride / unit,
                              .head_stride = head_stride / unit,
                              .head_units = head / unit,
                              .unit_bytes = unit};
  }
};

/// Preparation of a forward or backward pass: outputs and gradients of rows that belong to no sequence become 0.
[[nodiscard]] inline HstuPreparation preparation_of(HstuForwardArgs const& args) {
  HstuPreparation preparation(args);
  preparation.clear_query_rows_behind(args, args.out, args.value_dim);
  return preparation;
}

[[nodiscard]] inline HstuPreparation preparation_of(HstuBackwardArgs const& args) {
  HstuForwardArgs const& forward = args.forward;
  HstuPreparation preparation(forward);
  preparation.clear_query_rows_behind(forward, args.grad_query, forward.dim);
  preparation.clear_key_rows_behind(forward, args.grad_key, forward.dim);
  preparation.clear_key_rows_behind(forward, args.grad_value, forward.value_dim);
  return preparation;
}

}  // namespace headway::kernels
