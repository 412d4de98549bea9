#pragma once

#include "hstu/cuda/portable_shape.cuh"
#include "hstu/cuda/sequence_tile.cuh"
#include "hstu/cuda/time_table.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// Of a query or key of a sequence; those beyond its end see nothing and are not seen.
template <TileRows kSide>
[[nodiscard]] __device__ __forceinline__ TokenInfo token_info(SequenceView const& sequence, HstuBias const& bias,
                                                              std::int32_t index) {
  constexpr bool kIsQuery = kSide == TileRows::kQueries;
  HstuSequenceMask const& mask = sequence.mask;
  TokenInfo info;
  if (index >= (kIsQuery ? mask.num_queries : mask.num_keys)) {
    if constexpr (!kIsQuery) info.token = index;
    return info;
  }
  if constexpr (kIsQuery) {
    HstuKeyRange const range = mask.keys_seen_by(index);
    info.begin = range.begin;
    info.length = min(range.end, mask.num_keys) - range.begin;
  }
  info.token = kIsQuery ? mask.token_of(index) : index;
  if (bias.has_time()) {
    std::int64_t const* const times =
        kIsQuery ? bias.query_times + sequence.first_query_row : bias.key_times + sequence.first_key_row;
    info.time = {__ldg(times + index), __ldg(bias.key_times + sequence.first_key_row)};
  }
  return info;
}

[[nodiscard]] __device__ __forceinline__ bool sees(TokenInfo const& query, TokenInfo const& key) {
  return static_cast<std::uint32_t>(key.token - query.begin) < static_cast<std::uint32_t>(query.length) ||
         key.token == query.token;
}

[[nodiscard]] __device__ __forceinline__ std::int32_t time_bucket_of(TimeTable const& times, TokenInfo const& query,
                                                                     TokenInfo const& key) {
  return times.bucket_of(fabsf(time_difference(query.time, key.time)));
}

/// What a bias adds to the score of a pair.
struct PairBias {
  HstuBias const& bias;
  TimeTable const& times;

  [[nodiscard]] __device__ __forceinline__ float of(TokenInfo const& query, TokenInfo const& key) const {
    float sum = 0;
    if (bias.has_position()) {
      // Pairs beyond a sequence have a place as well, which may be beyond the weights.
      auto const last = static_cast<std::int32_t>(2 * bias.max_position_distance - 2);
      std::int32_t const place = last / 2 + key.token - query.token;
      sum += __ldg(static_cast<float const*>(bias.position_weights) + min(max(place, 0), last));
    }
    if (bias.has_time()) sum += times.weight(time_bucket_of(times, query, key));
    return sum;
  }
};

/// 1 / (1 + exp(-x)), as exact as elements of type T need it.
template <class T>
[[nodiscard]] __device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + (std::is_same_v<T, float> ? expf(-x) : __expf(-x)));
}

}  // namespace headway::kernels
