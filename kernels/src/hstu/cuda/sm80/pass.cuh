// SPDX-License-Identifier: Apache-2.0
#pragma once

// HSTU attention on sm_80 and later, forward and backward (mma.sync, cp.async). One kernel template serves all passes:
// rows of a tile of queries meet blocks of keys, or rows of a tile of keys meet blocks of queries. The operands of the
// tile's rows are `own`, those of the blocks are `other`. A prime after a matrix transposes it; SiLU' is the
// derivative.
//
//   pass                     own     other    S = own[0] other[0]'    dP = own[1] other[1]'    accumulates
//   forward, tiles of Q      Q       K, V     Q K'                    -                        O  += P V
//   backward, tiles of Q     Q, dO   K, V     Q K'                    dO V'                    dQ += dS K
//   backward, tiles of K     K, V    Q, dO    K Q'                    V dO'                    dV += P' dO, dK += dS' Q
//
// Idea: a block of threads keeps the accumulators of a tile in registers and streams the other side through two stages
// of shared memory (cp.async). P = SiLU(alpha * (S + bias)); dS = dP * SiLU'(alpha * (S + bias)). Each output has one
// owner, so nothing needs atomics. The price: both backward passes compute S and dP.
//
// Example: forward, causal, 128 queries and keys of 16 bits, dim 64: tiles and blocks have 64 rows. Tile 1 (queries 64
// to 127) loads key block 0, then block 1 while it computes block 0. Block 0 is whole; block 1 is masked.
//
// Invariants: gradients are bitwise reproducible; those of bias weights are partial sums per block of threads, added in
// a fixed order (sum_partials.cuh). Rows behind the end of a sequence are 0 in shared memory, see nothing and are not
// seen.
// Complexity: per visible block 2 products forward, 3 backward over Q, 4 backward over K (5 where dim > 128: dV and dK
// then take a pass each). Bias gradients need memory for at most 512 blocks of threads.
// Source: HSTU: Zhai et al. 2024, equation 3.

#include "hstu/cuda/sm80/bias_gradients.cuh"
#include "hstu/cuda/sm80/gemm.cuh"
#include "hstu/cuda/sm80/pairs.cuh"
#include "hstu/cuda/sm80/plan.hpp"
#include "hstu/cuda/sm80/rows.cuh"
#include "hstu/cuda/sm80/shape.cuh"
#include "hstu/cuda/tile/sequence_tile.cuh"
#include "hstu/cuda/tile/visible_blocks.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// A block of threads of a pass: computes every gridDim.x-th tile, and keeps its partial gradients of bias weights.
template <class Shape>
class Sm80Block {
 public:
  explicit __device__ __forceinline__ Sm80Block(Sm80Params const& params)
      : params_(params),
        shared_(*reinterpret_cast<Sm80Shared<Shape>*>(shared_memory())),
        times_(shared_memory() + sizeof(Sm80Shared<Shape>), params.bias) {}

  __device__ __forceinline__ void run() {
    prepare_bias();
    for (auto tile_index = static_cast<std::int32_t>(blockIdx.x); tile_index < params_.num_tiles;
         tile_index += static_cast<std::int32_t>(gridDim.x)) {
      Sm80Tile const tile = tile_at(tile_index);
      if (tile.num_rows > 0) compute_tile(tile);
    }
    if constexpr (Shape::kAddsBiasGradients) write_time_gradients();
  }

 private:
  using T = typename Shape::Element;
  static constexpr TileRows kOwnSide = Shape::kRows;
  static constexpr bool kHasQueries = kOwnSide == TileRows::kQueries;
  static constexpr TileRows kOtherSide = kHasQueries ? TileRows::kKeys : TileRows::kQueries;
  using Visible = std::conditional_t<kHasQueries, VisibleBlocks<KeysSeenBy, Shape::kBlockRows>,
                                     VisibleBlocks<QueriesThatSee, Shape::kBlockRows>>;
  using AccS = float[Shape::kBlockRows / 8][4];
  using Acc = float[Shape::kDim / 8][4];

  [[nodiscard]] static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] static __device__ __forceinline__ int first_row_of_warp() { return thread() / kWarpThreads * 16; }
  [[nodiscard]] static __device__ __forceinline__ int row_in_warp() { return thread() % kWarpThreads / 4; }
  [[nodiscard]] static __device__ __forceinline__ int first_column() { return thread() % 4 * 2; }

  __device__ __forceinline__ void compute_tile(Sm80Tile const& found) {
    cp_async_wait<0>();
    __syncthreads();  // No thread reads the previous tile after this barrier.
    if (thread() == 0) shared_.tile = found;
    __syncthreads();
    Sm80Tile const& tile = shared_.tile;
    load_tile(tile);
    Acc acc_p, acc_ds;
    if constexpr (Shape::kAccumulatesP) clear(acc_p);
    if constexpr (Shape::kAccumulatesDs) clear(acc_ds);

    std::int32_t const last = tile.first_row + min(tile.num_rows, Shape::kTileRows);
    Visible blocks({tile.sequence.mask, tile.first_row, last});
    int stage = 0;
    if (!blocks.is_done()) load_block(tile, blocks.block(), stage);
    while (!blocks.is_done()) {
      bool const is_whole = blocks.is_whole() && tile.num_rows >= Shape::kTileRows;
      blocks.advance();
      cp_async_wait<0>();
      __syncthreads();
      if (!blocks.is_done()) load_block(tile, blocks.block(), stage ^ 1);
      compute_block(tile, stage, is_whole, acc_p, acc_ds);
      stage ^= 1;
    }
    if constexpr (Shape::kAccumulatesP) store(tile, acc_p, tile.scale, params_.out_p);
    if constexpr (Shape::kAccumulatesDs) {
      store(tile, acc_ds, tile.scale * params_.alpha, params_.out_ds);
    }
  }

  /// Maps an index to a tile as if all sequences were as long as the longest; tiles behind a sequence have no rows.
  /// With a causal mask, the last queries meet most keys and the first keys meet most queries: these tiles come first.
  [[nodiscard]] __device__ __forceinline__ Sm80Tile tile_at(std::int32_t tile_index) const {
    std::int32_t const num_heads = params_.num_heads;
    std::int32_t const per_row = static_cast<std::int32_t>(params_.sequences.num_sequences) * num_heads;
    std::int32_t const row = tile_index / per_row, index = tile_index % per_row;
    std::int32_t const first_row = (kHasQueries ? params_.num_tiles / per_row - 1 - row : row) * Shape::kTileRows;
    SequenceView const sequence(params_.sequences, params_.mask, index / num_heads);
    std::int32_t const num_rows = kHasQueries ? sequence.mask.num_queries : sequence.mask.num_keys;
    return {sequence, index % num_heads, first_row, num_rows - first_row,
            scale_of_weights(params_, sequence.mask.num_keys)};
  }

  /// Starts to load the rows of the tile's own side, and computes the TokenInfo of each row.
  __device__ __forceinline__ void load_tile(Sm80Tile const& tile) const {
    std::int64_t const first = kHasQueries ? tile.sequence.first_query_row : tile.sequence.first_key_row;
#pragma unroll
    for (int i = 0; i < Shape::kOwnOperands; ++i) {
      load_rows<Shape::kTileRows, Shape::kDim, Shape::kPitch, Shape::kThreads>(
          shared_.own[i], params_.own[i], first + tile.first_row, tile.head, tile.num_rows);
    }
    for (int i = thread(); i < Shape::kTileRows; i += Shape::kThreads) {
      shared_.own_tokens[i] = token_info<kOwnSide>(tile.sequence, params_.bias, tile.first_row + i);
    }
  }

  /// Starts to load a block of the other side into a stage, as one cp.async group, and computes its TokenInfo.
  __device__ __forceinline__ void load_block(Sm80Tile const& tile, std::int32_t block, int stage) const {
    std::int32_t const first_row = block * Shape::kBlockRows;
    HstuSequenceMask const& mask = tile.sequence.mask;
    std::int64_t const first = kHasQueries ? tile.sequence.first_key_row : tile.sequence.first_query_row;
    std::int32_t const num_rows = (kHasQueries ? mask.num_keys : mask.num_queries) - first_row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_rows<Shape::kBlockRows, Shape::kDim, Shape::kPitch, Shape::kThreads>(
          shared_.other[stage][i], params_.other[i], first + first_row, tile.head, num_rows);
    }
    cp_async_commit();
    for (int i = thread(); i < Shape::kBlockRows; i += Shape::kThreads) {
      shared_.other_tokens[stage][i] = token_info<kOtherSide>(tile.sequence, params_.bias, first_row + i);
    }
  }

  /// Adds one block to the accumulators: S (and dP), SiLU, then the products with the other side.
  __device__ __forceinline__ void compute_block(Sm80Tile const& tile, int stage, bool is_whole, Acc& acc_p,
                                                Acc& acc_ds) const {
    AccS s, dp;
    clear(s);
    int const own = first_row_of_warp() * Shape::kPitch;
    gemm<Shape::kDim, Shape::kPitch>(s, shared_.own[0] + own, shared_.other[stage][0]);
    if constexpr (Shape::kAccumulatesDs) {
      clear(dp);
      gemm<Shape::kDim, Shape::kPitch>(dp, shared_.own[1] + own, shared_.other[stage][1]);
    }
    if (is_whole && !params_.bias.has_position() && !params_.bias.has_time()) {
      compute_p_and_ds<true>(s, dp, stage);
    } else {
      compute_p_and_ds<false>(s, dp, stage);
    }
    if constexpr (Shape::kAccumulatesP) accumulate(acc_p, s, shared_.other[stage][1]);
    if constexpr (Shape::kAccumulatesDs) accumulate(acc_ds, dp, shared_.other[stage][0]);
    if constexpr (Shape::kAddsBiasGradients) add_bias_gradients(dp, stage, tile.scale * params_.alpha);
  }

  /// Replaces S by P, and dP by dS without the factors alpha and scale, in place.
  /// @tparam kIsPlain neither mask nor bias applies to the block
  template <bool kIsPlain>
  __device__ __forceinline__ void compute_p_and_ds(AccS& s, AccS& dp, int stage) const {
    PairBias const bias{params_.bias, times_};
    TokenInfo rows[2];
    if constexpr (!kIsPlain) {
      for (int r = 0; r < 2; ++r) rows[r] = shared_.own_tokens[first_row_of_warp() + row_in_warp() + 8 * r];
    }
#pragma unroll
    for (int group = 0; group < Shape::kBlockRows / 8; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = s[group][i];
        bool is_seen = true;
        if constexpr (!kIsPlain) {
          TokenInfo const& other = shared_.other_tokens[stage][8 * group + first_column() + i % 2];
          TokenInfo const& query = kHasQueries ? rows[i / 2] : other;
          TokenInfo const& key = kHasQueries ? other : rows[i / 2];
          is_seen = sees(query, key);
          score += bias.of(query, key);
        }
        score *= params_.alpha;
        float const sigma = sigmoid<T>(score);
        if constexpr (Shape::kAccumulatesP) s[group][i] = is_seen ? score * sigma : 0.0F;
        if constexpr (Shape::kAccumulatesDs) {
          dp[group][i] = is_seen ? dp[group][i] * sigma * fmaf(score, 1.0F - sigma, 1.0F) : 0.0F;
        }
      }
    }
  }

  /// Floats in shared memory that this warp alone uses.
  [[nodiscard]] __device__ __forceinline__ float* scratch_of_warp() const {
    return shared_.scratch + first_row_of_warp() * Shape::kScratchPitch;
  }

  /// acc += p * other, for P or dS. float32 elements of p go through shared memory; 16-bit ones stay in registers.
  __device__ __forceinline__ void accumulate(Acc& acc, AccS const& p, T const* other) const {
    if constexpr (Shape::kIsFloat32) {
      __syncwarp();
      write_fragment<Shape::kScratchPitch>(scratch_of_warp(), p);
      __syncwarp();
      gemm_ss<Shape::kBlockRows, Shape::kScratchPitch, Shape::kPitch>(acc, scratch_of_warp(), other);
    } else {
      gemm_rs<Shape::kPitch>(acc, p, other);
    }
  }

  /// Adds dS of the block to the partial gradients of bias weights.
  __device__ __forceinline__ void add_bias_gradients(AccS const& ds, int stage, float factor) const {
    if (params_.position_partials == nullptr && params_.time_partials == nullptr) return;
    if constexpr (!Shape::kIsFloat32) write_fragment<Shape::kScratchPitch>(scratch_of_warp(), ds);
    __syncthreads();
    if (params_.time_partials != nullptr) {
      add_time_gradients<Shape>(scratch_of_warp(), factor, shared_.own_tokens + first_row_of_warp(),
                                shared_.other_tokens[stage], times_, time_sums(thread() / kWarpThreads));
    }
    if (params_.position_partials != nullptr) {
      std::int64_t const first_index =
          params_.bias.max_position_distance - 1 + shared_.other_tokens[stage][0].token - shared_.own_tokens[0].token;
      add_position_gradients<Shape>(shared_.scratch, factor, first_index, num_position_weights(), position_partial());
    }
  }

  /// Scales the accumulators and writes the rows that exist.
  __device__ __forceinline__ void store(Sm80Tile const& tile, Acc const& acc, float factor,
                                        Sm80Rows<void*> const& rows) const {
    std::int64_t const first = kHasQueries ? tile.sequence.first_query_row : tile.sequence.first_key_row;
    std::int32_t const row = first_row_of_warp() + row_in_warp();
    T* const out = static_cast<T*>(rows.heads.data) + (first + tile.first_row + row) * rows.heads.token_stride +
                   tile.head * rows.heads.head_stride;
#pragma unroll
    for (int group = 0; group < Shape::kDim / 8; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (row + 8 * r >= tile.num_rows) continue;
        store_pair(rows, out + 8 * r * rows.heads.token_stride, 8 * group + first_column(), acc[group][2 * r] * factor,
                   acc[group][2 * r + 1] * factor);
      }
    }
  }

  template <int kGroups>
  static __device__ __forceinline__ void clear(float (&acc)[kGroups][4]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[group][i] = 0;
    }
  }

  [[nodiscard]] __device__ __forceinline__ std::int64_t num_position_weights() const {
    return 2 * params_.bias.max_position_distance - 1;
  }
  [[nodiscard]] __device__ __forceinline__ float* position_partial() const {
    return params_.position_partials + blockIdx.x * num_position_weights();
  }
  /// Partial gradients of time weights of one warp, in shared memory.
  [[nodiscard]] __device__ __forceinline__ float* time_sums(int warp) const {
    std::byte* const behind =
        shared_memory() + sizeof(Sm80Shared<Shape>) + TimeTable::size_bytes(params_.bias.num_time_bounds);
    return reinterpret_cast<float*>(behind) + warp * times_.num_buckets();
  }

  /// Clears the partial gradients and fills the time table.
  __device__ __forceinline__ void prepare_bias() {
    if constexpr (Shape::kAddsBiasGradients) {
      for (int i = thread(); params_.time_partials != nullptr && i < Shape::kWarps * times_.num_buckets();
           i += Shape::kThreads) {
        time_sums(0)[i] = 0;
      }
      for (std::int64_t i = thread(); params_.position_partials != nullptr && i < num_position_weights();
           i += Shape::kThreads) {
        position_partial()[i] = 0;
      }
    }
    if (params_.bias.has_time()) {
      times_.fill(params_.bias, /*factor=*/1, thread(), Shape::kThreads, [] { __syncthreads(); });
    }
  }

  /// Adds the warps' partial gradients of time weights in order, into the partial of this block of threads.
  __device__ __forceinline__ void write_time_gradients() const {
    if (params_.time_partials == nullptr) return;
    __syncthreads();
    float* const partial = params_.time_partials + static_cast<std::int64_t>(blockIdx.x) * times_.num_buckets();
    for (int i = thread(); i < times_.num_buckets(); i += Shape::kThreads) {
      float sum = 0;
      for (int warp = 0; warp < Shape::kWarps; ++warp) sum += time_sums(warp)[i];
      partial[i] = sum;
    }
  }

  Sm80Params const& params_;
  Sm80Shared<Shape>& shared_;
  TimeTable times_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) sm80_pass_kernel(__grid_constant__ Sm80Params const params) {
  Sm80Block<Shape>(params).run();
}

}  // namespace headway::kernels
