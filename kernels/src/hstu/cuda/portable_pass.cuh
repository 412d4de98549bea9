#pragma once

// HSTU attention on sm_80 and later, forward and backward (mma.sync, cp.async). One kernel template serves all passes:
// rows of a tile of queries meet blocks of keys, or rows of a tile of keys meet blocks of queries.
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

#include "hstu/cuda/portable_pairs.cuh"
#include "hstu/cuda/portable_params.hpp"
#include "hstu/cuda/portable_products.cuh"
#include "hstu/cuda/portable_rows.cuh"
#include "hstu/cuda/portable_shape.cuh"
#include "hstu/cuda/portable_table_gradients.cuh"
#include "hstu/cuda/sequence_tile.cuh"
#include "hstu/cuda/visible_blocks.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

template <class Shape>
class PortableBlock {
 public:
  explicit __device__ __forceinline__ PortableBlock(PortableParams const& params)
      : params_(params),
        shared_(*reinterpret_cast<PortableShared<Shape>*>(shared_memory())),
        times_(shared_memory() + sizeof(PortableShared<Shape>), params.bias) {}

  __device__ __forceinline__ void run() {
    prepare_tables();
    for (auto number = static_cast<std::int32_t>(blockIdx.x); number < params_.num_tiles;
         number += static_cast<std::int32_t>(gridDim.x)) {
      PortableTile const tile = tile_at(number);
      if (tile.num_rows > 0) compute_tile(tile);
    }
    if constexpr (Shape::kAddsTables) write_time_gradients();
  }

 private:
  using T = typename Shape::Element;
  static constexpr TileRows kOwnSide = Shape::kRows;
  static constexpr bool kHasQueries = kOwnSide == TileRows::kQueries;
  static constexpr TileRows kOtherSide = kHasQueries ? TileRows::kKeys : TileRows::kQueries;
  using Visible = std::conditional_t<kHasQueries, VisibleBlocks<KeysSeenBy, Shape::kBlockRows>,
                                     VisibleBlocks<QueriesThatSee, Shape::kBlockRows>>;
  using Scores = float[Shape::kBlockRows / 8][4];
  using Sums = float[Shape::kDim / 8][4];

  [[nodiscard]] static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] static __device__ __forceinline__ int first_row_of_warp() { return thread() / kWarpThreads * 16; }
  [[nodiscard]] static __device__ __forceinline__ int row_in_warp() { return thread() % kWarpThreads / 4; }
  [[nodiscard]] static __device__ __forceinline__ int first_column() { return thread() % 4 * 2; }

  __device__ __forceinline__ void compute_tile(PortableTile const& found) {
    wait_copies<0>();
    __syncthreads();  // No thread reads the previous tile after this barrier.
    if (thread() == 0) shared_.tile = found;
    __syncthreads();
    PortableTile const& tile = shared_.tile;
    load_tile(tile);
    Sums weight_sums, gradient_sums;
    if constexpr (Shape::kSumsWeights) clear(weight_sums);
    if constexpr (Shape::kSumsGradients) clear(gradient_sums);

    std::int32_t const last = tile.first_row + min(tile.num_rows, Shape::kTileRows);
    Visible blocks({tile.sequence.mask, tile.first_row, last});
    int stage = 0;
    if (!blocks.is_done()) load_block(tile, blocks.block(), stage);
    while (!blocks.is_done()) {
      bool const is_whole = blocks.is_whole() && tile.num_rows >= Shape::kTileRows;
      blocks.advance();
      wait_copies<0>();
      __syncthreads();
      if (!blocks.is_done()) load_block(tile, blocks.block(), stage ^ 1);
      compute_block(tile, stage, is_whole, weight_sums, gradient_sums);
      stage ^= 1;
    }
    if constexpr (Shape::kSumsWeights) store(tile, weight_sums, tile.scale, params_.weight_sums);
    if constexpr (Shape::kSumsGradients) {
      store(tile, gradient_sums, tile.scale * params_.alpha, params_.gradient_sums);
    }
  }

  /// Maps a number to a tile as if all sequences were as long as the longest; tiles behind a sequence have no rows.
  /// With a causal mask, the last queries meet most keys and the first keys meet most queries: these tiles come first.
  /// Starts to load the own rows of a tile, and computes the TokenInfo of each row.
  /// Starts to load a block of the other side into a stage, as one cp.async group, and computes its TokenInfo.
  /// Adds one block to the accumulators: S (and dP), SiLU, then the products with the other side.
  [[nodiscard]] __device__ __forceinline__ PortableTile tile_at(std::int32_t number) const {
    std::int32_t const num_heads = params_.num_heads;
    std::int32_t const per_row = static_cast<std::int32_t>(params_.sequences.num_sequences) * num_heads;
    std::int32_t const row = number / per_row, place = number % per_row;
    std::int32_t const first_row = (kHasQueries ? params_.num_tiles / per_row - 1 - row : row) * Shape::kTileRows;
    SequenceView const sequence(params_.sequences, params_.mask, place / num_heads);
    std::int32_t const num_rows = kHasQueries ? sequence.mask.num_queries : sequence.mask.num_keys;
    return {sequence, place % num_heads, first_row, num_rows - first_row,
            scale_of_weights(params_, sequence.mask.num_keys)};
  }

  __device__ __forceinline__ void load_tile(PortableTile const& tile) const {
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

  __device__ __forceinline__ void load_block(PortableTile const& tile, std::int32_t block, int stage) const {
    std::int32_t const first_row = block * Shape::kBlockRows;
    HstuSequenceMask const& mask = tile.sequence.mask;
    std::int64_t const first = kHasQueries ? tile.sequence.first_key_row : tile.sequence.first_query_row;
    std::int32_t const num_rows = (kHasQueries ? mask.num_keys : mask.num_queries) - first_row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_rows<Shape::kBlockRows, Shape::kDim, Shape::kPitch, Shape::kThreads>(
          shared_.other[stage][i], params_.other[i], first + first_row, tile.head, num_rows);
    }
    commit_copies();
    for (int i = thread(); i < Shape::kBlockRows; i += Shape::kThreads) {
      shared_.other_tokens[stage][i] = token_info<kOtherSide>(tile.sequence, params_.bias, first_row + i);
    }
  }

  __device__ __forceinline__ void compute_block(PortableTile const& tile, int stage, bool is_whole, Sums& weight_sums,
                                                Sums& gradient_sums) const {
    Scores scores, gradients;
    clear(scores);
    int const own = first_row_of_warp() * Shape::kPitch;
    multiply_rows<Shape::kDim, Shape::kPitch>(scores, shared_.own[0] + own, shared_.other[stage][0]);
    if constexpr (Shape::kSumsGradients) {
      clear(gradients);
      multiply_rows<Shape::kDim, Shape::kPitch>(gradients, shared_.own[1] + own, shared_.other[stage][1]);
    }
    if (is_whole && !params_.bias.has_position() && !params_.bias.has_time()) {
      weigh<true>(scores, gradients, stage);
    } else {
      weigh<false>(scores, gradients, stage);
    }
    if constexpr (Shape::kSumsWeights) add(weight_sums, scores, shared_.other[stage][1]);
    if constexpr (Shape::kSumsGradients) add(gradient_sums, gradients, shared_.other[stage][0]);
    if constexpr (Shape::kAddsTables) add_table_gradients(gradients, stage, tile.scale * params_.alpha);
  }

  /// Replaces S by P, and dP by dS without the factors alpha and scale, in place.
  /// @tparam kIsPlain neither mask nor bias applies to the block
  /// Floats in shared memory that this warp alone uses.
  /// sums += weights * other. float32 weights go through shared memory; 16-bit ones stay in registers.
  /// Adds dS of the block to the partial gradients of bias weights.
  /// Scales the accumulators and writes the rows that exist.
  template <bool kIsPlain>
  __device__ __forceinline__ void weigh(Scores& scores, Scores& gradients, int stage) const {
    PairBias const bias{params_.bias, times_};
    TokenInfo rows[2];
    if constexpr (!kIsPlain) {
      for (int r = 0; r < 2; ++r) rows[r] = shared_.own_tokens[first_row_of_warp() + row_in_warp() + 8 * r];
    }
#pragma unroll
    for (int group = 0; group < Shape::kBlockRows / 8; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = scores[group][i];
        bool is_seen = true;
        if constexpr (!kIsPlain) {
          TokenInfo const& other = shared_.other_tokens[stage][8 * group + first_column() + i % 2];
          TokenInfo const& query = kHasQueries ? rows[i / 2] : other;
          TokenInfo const& key = kHasQueries ? other : rows[i / 2];
          is_seen = sees(query, key);
          score += bias.of(query, key);
        }
        score *= params_.alpha;
        float const slope = sigmoid<T>(score);
        if constexpr (Shape::kSumsWeights) scores[group][i] = is_seen ? score * slope : 0.0F;
        if constexpr (Shape::kSumsGradients) {
          gradients[group][i] = is_seen ? gradients[group][i] * slope * fmaf(score, 1.0F - slope, 1.0F) : 0.0F;
        }
      }
    }
  }

  [[nodiscard]] __device__ __forceinline__ float* scratch_of_warp() const {
    return shared_.scratch + first_row_of_warp() * Shape::kScratchPitch;
  }

  __device__ __forceinline__ void add(Sums& sums, Scores const& weights, T const* other) const {
    if constexpr (Shape::kIsFloat32) {
      __syncwarp();
      write_fragment<Shape::kScratchPitch>(scratch_of_warp(), weights);
      __syncwarp();
      multiply_shared_weights<Shape::kBlockRows, Shape::kScratchPitch, Shape::kPitch>(sums, scratch_of_warp(), other);
    } else {
      multiply_weights<Shape::kPitch>(sums, weights, other);
    }
  }

  __device__ __forceinline__ void add_table_gradients(Scores const& gradients, int stage, float factor) const {
    if (params_.position_partials == nullptr && params_.time_partials == nullptr) return;
    if constexpr (!Shape::kIsFloat32) write_fragment<Shape::kScratchPitch>(scratch_of_warp(), gradients);
    __syncthreads();
    if (params_.time_partials != nullptr) {
      add_time_gradients<Shape>(scratch_of_warp(), factor, shared_.own_tokens + first_row_of_warp(),
                                shared_.other_tokens[stage], times_, time_sums(thread() / kWarpThreads));
    }
    if (params_.position_partials != nullptr) {
      std::int64_t const first_place =
          params_.bias.max_position_distance - 1 + shared_.other_tokens[stage][0].token - shared_.own_tokens[0].token;
      add_position_gradients<Shape>(shared_.scratch, factor, first_place, num_position_weights(), position_partial());
    }
  }

  __device__ __forceinline__ void store(PortableTile const& tile, Sums const& sums, float factor,
                                        PortableRows<void*> const& rows) const {
    std::int64_t const first = kHasQueries ? tile.sequence.first_query_row : tile.sequence.first_key_row;
    std::int32_t const row = first_row_of_warp() + row_in_warp();
    T* const out = static_cast<T*>(rows.heads.data) + (first + tile.first_row + row) * rows.heads.token_stride +
                   tile.head * rows.heads.head_stride;
#pragma unroll
    for (int group = 0; group < Shape::kDim / 8; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (row + 8 * r >= tile.num_rows) continue;
        store_pair(rows, out + 8 * r * rows.heads.token_stride, 8 * group + first_column(), sums[group][2 * r] * factor,
                   sums[group][2 * r + 1] * factor);
      }
    }
  }

  template <int kGroups>
  static __device__ __forceinline__ void clear(float (&sums)[kGroups][4]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[group][i] = 0;
    }
  }

  [[nodiscard]] __device__ __forceinline__ std::int64_t num_position_weights() const {
    return 2 * params_.bias.max_position_distance - 1;
  }
  [[nodiscard]] __device__ __forceinline__ float* position_partial() const {
    return params_.position_partials + blockIdx.x * num_position_weights();
  }
  /// Partial gradients of time weights of one warp, in shared memory.
  /// Clears the partial gradients and fills the time table.
  /// Adds the warps' partial gradients of time weights in order, into the partial of this block of threads.
  [[nodiscard]] __device__ __forceinline__ float* time_sums(int warp) const {
    std::byte* const behind =
        shared_memory() + sizeof(PortableShared<Shape>) + TimeTable::size_bytes(params_.bias.num_time_bounds);
    return reinterpret_cast<float*>(behind) + warp * times_.num_buckets();
  }

  __device__ __forceinline__ void prepare_tables() {
    if constexpr (Shape::kAddsTables) {
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
      times_.fill(params_.bias, 1, thread(), Shape::kThreads, [] { __syncthreads(); });
    }
  }

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

  PortableParams const& params_;
  PortableShared<Shape>& shared_;
  TimeTable times_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    portable_pass_kernel(__grid_constant__ PortableParams const params) {
  PortableBlock<Shape>(params).run();
}

}  // namespace headway::kernels
