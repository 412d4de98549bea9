// SPDX-License-Identifier: Apache-2.0

// Pairs of a query and a key in the sm_80 kernels: visibility, bias, and SiLU.

#pragma once

#include "hstu/cuda/sm80/shape.cuh"
#include "hstu/cuda/tile/sequence_tile.cuh"
#include "hstu/cuda/tile/time_table.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// TokenInfo of a query or key. Tokens beyond the end of the sequence see nothing and are not seen.
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

/// Does the query see the key? One unsigned comparison tests the range; a query also sees itself.
/// Example: a query that sees keys 3 to 6 has begin 3 and length 4. Key 2 gives 2 - 3, a huge unsigned number, which
/// is not below 4; key 6 gives 3, which is.
[[nodiscard]] __device__ __forceinline__ bool sees(TokenInfo const& query, TokenInfo const& key) {
  return static_cast<std::uint32_t>(key.token - query.begin) < static_cast<std::uint32_t>(query.length) ||
         key.token == query.token;
}

/// Bucket of the time difference of a pair.
[[nodiscard]] __device__ __forceinline__ std::int32_t time_bucket_of(TimeTable const& times, TokenInfo const& query,
                                                                     TokenInfo const& key) {
  return times.bucket_of(fabsf(time_difference(query.time, key.time)));
}

/// Bias of a pair: position weight plus time weight.
struct PairBias {
  HstuBias const& bias;
  TimeTable const& times;

  [[nodiscard]] __device__ __forceinline__ float of(TokenInfo const& query, TokenInfo const& key) const {
    float sum = 0;
    if (bias.has_position()) {
      // Pairs beyond the sequence may have a distance outside of the table. Clamping keeps the load in bounds.
      auto const last = static_cast<std::int32_t>(2 * bias.max_position_distance - 2);
      std::int32_t const index = last / 2 + key.token - query.token;
      sum += __ldg(static_cast<float const*>(bias.position_weights) + min(max(index, 0), last));
    }
    if (bias.has_time()) sum += times.weight(time_bucket_of(times, query, key));
    return sum;
  }
};

/// 1 / (1 + exp(-x)), with the precision that elements of type T need: exact exp for float, fast exp for 16 bits.
template <class T>
[[nodiscard]] __device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + (std::is_same_v<T, float> ? expf(-x) : __expf(-x)));
}

}  // namespace headway::kernels
