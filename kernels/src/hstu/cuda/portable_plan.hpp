#pragma once

#include "hstu/cuda/portable_params.hpp"
#include "hstu/cuda/portable_shape.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace headway::kernels {

/// Tiles of queries, or keys, if all sequences were as long as the longest.
[[nodiscard]] inline std::int64_t num_portable_tiles(HstuForwardArgs const& args, TileRows side,
                                                     std::int64_t tile_rows) {
  std::int64_t const longest = side == TileRows::kQueries ? args.sequences.max_queries : args.sequences.max_keys;
  return (longest + tile_rows - 1) / tile_rows * args.sequences.num_sequences * args.num_heads;
}

/// Where blocks of threads put their parts of the gradients of bias weights; null for those that are not wanted.
struct PortablePartials {
  /// More blocks would need more memory, fewer would leave multiprocessors idle.
  static constexpr std::int64_t kMostBlocks = 512;

  float *position = nullptr, *time = nullptr;
  std::int64_t position_size = 0, time_size = 0;  ///< Of one block.
  std::int64_t num_blocks = 0;

  /// @param memory may be null where only size_bytes() is asked for
  PortablePartials(HstuBackwardArgs const& args, void* memory)
      : num_blocks(std::min(kMostBlocks, num_portable_tiles(args.forward, TileRows::kQueries, 16))) {
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

/// Passes over the arguments; what launches them comes from outside.
/// @tparam kDim at least `dim` and `value_dim`
template <class T, int kDim>
class PortablePlan {
 public:
  explicit PortablePlan(HstuForwardArgs const& args) : args_(args) {}

  /// @param launch launch.operator()<Shape>(params, blocks of the grid)
  template <class Launch>
  void forward(Launch const& launch) const {
    PortableParams params = params_of(args_);
    params.own[0] = rows(args_.query, args_.dim);
    params.other[0] = rows(args_.key, args_.dim);
    params.other[1] = rows(args_.value, args_.value_dim);
    params.weight_sums = rows(args_.out, args_.value_dim);
    pass<TileRows::kQueries, PassSums::kWeights>(params, launch);
  }

  /// Leaves partial sums of the gradients of bias weights.
  /// @returns how many blocks have left some
  template <class Launch>
  std::int64_t backward_of_queries(HstuBackwardArgs const& args, PortablePartials const& partials,
                                   Launch const& launch) const {
    PortableParams params = params_of(args_);
    params.own[0] = rows(args_.query, args_.dim);
    params.own[1] = rows(args.grad_out, args_.value_dim);
    params.other[0] = rows(args_.key, args_.dim);
    params.other[1] = rows(args_.value, args_.value_dim);
    params.gradient_sums = rows(args.grad_query, args_.dim);
    params.position_partials = partials.position;
    params.time_partials = partials.time;
    return pass<TileRows::kQueries, PassSums::kGradients>(
        params, launch, partials.is_wanted() ? partials.num_blocks : std::numeric_limits<std::int64_t>::max());
  }

  template <class Launch>
  void backward_of_keys(HstuBackwardArgs const& args, Launch const& launch) const {
    PortableParams params = params_of(args_);
    params.own[0] = rows(args_.key, args_.dim);
    params.own[1] = rows(args_.value, args_.value_dim);
    params.other[0] = rows(args_.query, args_.dim);
    params.other[1] = rows(args.grad_out, args_.value_dim);
    params.weight_sums = rows(args.grad_value, args_.value_dim);
    params.gradient_sums = rows(args.grad_key, args_.dim);
    // Sums of both are more than the registers of a thread above 128 columns.
    if constexpr (kDim <= 128) {
      pass<TileRows::kKeys, PassSums::kBoth>(params, launch);
    } else {
      pass<TileRows::kKeys, PassSums::kWeights>(params, launch);
      pass<TileRows::kKeys, PassSums::kGradients>(params, launch);
    }
  }

 private:
  template <TileRows kRows, PassSums kSums, class Launch>
  std::int64_t pass(PortableParams params, Launch const& launch,
                    std::int64_t most_blocks = std::numeric_limits<std::int64_t>::max()) const {
    using Shape = PortableShape<T, kDim, kRows, kSums>;
    std::int64_t const num_tiles = num_portable_tiles(args_, kRows, Shape::kTileRows);
    std::int64_t const num_blocks = std::min(most_blocks, num_tiles);
    params.num_tiles = static_cast<std::int32_t>(num_tiles);
    if (num_blocks > 0) launch.template operator()<Shape>(params, num_blocks);
    return num_blocks;
  }

  [[nodiscard]] static PortableParams params_of(HstuForwardArgs const& args) {
    PortableParams params;
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
  [[nodiscard]] PortableRows<Pointer> rows(JaggedHeads<Pointer> const& heads, std::int32_t dim) const {
    constexpr std::int64_t kUnit = 16 / sizeof(T);
    bool const is_aligned = reinterpret_cast<std::uintptr_t>(heads.data) % 16 == 0 && heads.token_stride % kUnit == 0 &&
                            (args_.num_heads == 1 || heads.head_stride % kUnit == 0);
    return {heads, dim, is_aligned};
  }

  HstuForwardArgs const& args_;
};

}  // namespace headway::kernels
