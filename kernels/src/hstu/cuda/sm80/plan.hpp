// SPDX-License-Identifier: Apache-2.0

// Passes of a call on sm_80: which tensors are the tile's own side, which the other, and where accumulators go. The
// backward pass has two or three passes, so that each output has one owner (pass.cuh).

#pragma once

#include "headway/kernels/hstu_attention.hpp"
#include "hstu/cuda/sm80/shape.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace headway::kernels {

/// Rows of 16-bit or 32-bit elements that a pass reads or writes.
template <class Pointer>
struct Sm80Rows {
  JaggedHeads<Pointer> heads;
  std::int32_t dim = 0;
  bool is_aligned = false;  ///< Does each row of a head begin at a multiple of 16 bytes?
};

/// Kernel parameters of a pass. Tiles are cut from the rows of `own`; each meets blocks of rows of `other` (pass.cuh).
struct Sm80Params {
  HstuSequences sequences;
  HstuMaskOptions mask;
  HstuBias bias;
  LengthScaling length_scaling = LengthScaling::kNone;
  float alpha = 1, scale = 1;
  std::int32_t num_heads = 0;
  std::int32_t num_tiles = 0;
  Sm80Rows<void const*> own[2], other[2];  ///< Operands by row; `own[0]` and `other[0]` give scores.
  Sm80Rows<void*> out_p, out_ds;           ///< Outputs of the accumulators; unused ones are empty.
  float* position_partials = nullptr;      ///< (blocks of the grid, 2 * max_position_distance - 1), or null.
  float* time_partials = nullptr;          ///< (blocks of the grid, num_time_bounds + 1), or null.
};

/// Number of tiles of queries or keys if all sequences were as long as the longest.
[[nodiscard]] inline std::int64_t num_sm80_tiles(HstuForwardArgs const& args, TileRows side, std::int64_t tile_rows) {
  std::int64_t const longest = side == TileRows::kQueries ? args.sequences.max_queries : args.sequences.max_keys;
  return (longest + tile_rows - 1) / tile_rows * args.sequences.num_sequences * args.num_heads;
}

/// Partial gradients of bias weights, one per block of threads, in the workspace. Null for gradients that are not
/// wanted.
struct Sm80Partials {
  /// Upper bound on blocks of threads: more need more memory, fewer leave multiprocessors idle.
  static constexpr std::int64_t kMaxBlocks = 512;

  float *position = nullptr, *time = nullptr;
  std::int64_t position_size = 0, time_size = 0;  ///< Floats per block of threads.
  std::int64_t num_blocks = 0;                    ///< Most blocks of threads that have partial gradients.

  /// Tiles of the pass over queries have at least 16 rows, so it has at most as many blocks as tiles of 16 rows.
  /// @param memory the workspace; may be null if only size_bytes() is called
  Sm80Partials(HstuBackwardArgs const& args, void* memory)
      : num_blocks(std::min(kMaxBlocks, num_sm80_tiles(args.forward, TileRows::kQueries, 16))) {
    HstuBias const& bias = args.forward.bias;
    if (bias.has_position() && args.grad_position_weights != nullptr) {
      position_size = 2 * bias.max_position_distance - 1;
      position = static_cast<float*>(memory);
    }
    if (bias.has_time() && args.grad_time_weights != nullptr) {
      time_size = bias.num_time_bounds + 1;
      if (memory != nullptr) time = static_cast<float*>(memory) + num_blocks * position_size;
    }
  }

  [[nodiscard]] bool is_wanted() const { return position_size > 0 || time_size > 0; }
  [[nodiscard]] std::size_t size_bytes() const {
    return static_cast<std::size_t>(num_blocks * (position_size + time_size)) * sizeof(float);
  }
};

/// Translates a call into passes. The caller supplies the function that launches them, so an emulator can run them too.
/// @tparam kDim at least `dim` and `value_dim`
template <class T, int kDim>
class Sm80Plan {
 public:
  explicit Sm80Plan(HstuForwardArgs const& args) : args_(args) {}

  /// @param launch launch.operator()<Shape>(params, blocks of the grid)
  template <class Launch>
  void forward(Launch const& launch) const {
    Sm80Params params = params_of(args_);
    params.own[0] = rows(args_.query, args_.dim);
    params.other[0] = rows(args_.key, args_.dim);
    params.other[1] = rows(args_.value, args_.value_dim);
    params.out_p = rows(args_.out, args_.value_dim);
    pass<TileRows::kQueries, PassAcc::kP>(params, launch);
  }

  /// Backward pass over queries: dQ, and partial gradients of bias weights.
  /// @returns number of blocks of threads that have left partial gradients
  template <class Launch>
  std::int64_t backward_of_queries(HstuBackwardArgs const& args, Sm80Partials const& partials,
                                   Launch const& launch) const {
    Sm80Params params = params_of(args_);
    params.own[0] = rows(args_.query, args_.dim);
    params.own[1] = rows(args.grad_out, args_.value_dim);
    params.other[0] = rows(args_.key, args_.dim);
    params.other[1] = rows(args_.value, args_.value_dim);
    params.out_ds = rows(args.grad_query, args_.dim);
    params.position_partials = partials.position;
    params.time_partials = partials.time;
    return pass<TileRows::kQueries, PassAcc::kDs>(
        params, launch, partials.is_wanted() ? partials.num_blocks : std::numeric_limits<std::int64_t>::max());
  }

  /// Backward pass over keys: dK and dV.
  template <class Launch>
  void backward_of_keys(HstuBackwardArgs const& args, Launch const& launch) const {
    Sm80Params params = params_of(args_);
    params.own[0] = rows(args_.key, args_.dim);
    params.own[1] = rows(args_.value, args_.value_dim);
    params.other[0] = rows(args_.query, args_.dim);
    params.other[1] = rows(args.grad_out, args_.value_dim);
    params.out_p = rows(args.grad_value, args_.value_dim);
    params.out_ds = rows(args.grad_key, args_.dim);
    // Above 128 columns, the accumulators of dK and dV together exceed the registers of a thread.
    if constexpr (kDim <= 128) {
      pass<TileRows::kKeys, PassAcc::kBoth>(params, launch);
    } else {
      pass<TileRows::kKeys, PassAcc::kP>(params, launch);
      pass<TileRows::kKeys, PassAcc::kDs>(params, launch);
    }
  }

 private:
  /// Launches one pass with at most `max_blocks` blocks of threads. @returns number of blocks
  template <TileRows kRows, PassAcc kAcc, class Launch>
  std::int64_t pass(Sm80Params params, Launch const& launch,
                    std::int64_t max_blocks = std::numeric_limits<std::int64_t>::max()) const {
    using Shape = Sm80Shape<T, kDim, kRows, kAcc>;
    std::int64_t const num_tiles = num_sm80_tiles(args_, kRows, Shape::kTileRows);
    std::int64_t const num_blocks = std::min(max_blocks, num_tiles);
    params.num_tiles = static_cast<std::int32_t>(num_tiles);
    if (num_blocks > 0) launch.template operator()<Shape>(params, num_blocks);
    return num_blocks;
  }

  [[nodiscard]] static Sm80Params params_of(HstuForwardArgs const& args) {
    Sm80Params params;
    params.sequences = args.sequences;
    params.mask = args.options.mask;
    params.bias = args.bias;
    params.length_scaling = args.options.length_scaling;
    params.alpha = static_cast<float>(args.options.alpha);
    params.scale = static_cast<float>(args.options.scale);
    params.num_heads = args.num_heads;
    return params;
  }

  template <class Pointer>
  [[nodiscard]] Sm80Rows<Pointer> rows(JaggedHeads<Pointer> const& heads, std::int32_t dim) const {
    constexpr std::int64_t kUnit = 16 / sizeof(T);
    bool const is_aligned = reinterpret_cast<std::uintptr_t>(heads.data) % 16 == 0 && heads.token_stride % kUnit == 0 &&
                            (args_.num_heads == 1 || heads.head_stride % kUnit == 0);
    return {heads, dim, is_aligned};
  }

  HstuForwardArgs const& args_;
};

}  // namespace headway::kernels
