// SPDX-License-Identifier: Apache-2.0

// Visibility and SiLU of scores in registers.
//
// SiLU uses tanh, one instruction, instead of exp and a division: sigmoid(x) = (1 + tanh(x / 2)) / 2, so SiLU(x) = h
// (1 + tanh(h)) with h = x / 2. Kernels therefore compute h directly: alpha is halved once, on the host.

#pragma once

#include "headway/kernels/hstu_mask.hpp"
#include "hstu/cuda/sm90/fragment_coord.cuh"

#include <cstdint>

namespace headway::kernels {

/// Keys that a query sees: `length` keys from `begin` on, and its own token.
struct alignas(16) QueryVisibility {
  std::int32_t begin, length, token;

  [[nodiscard]] __device__ __forceinline__ bool sees(std::int32_t key) const {
    return is_among(key - begin, length) | (key == token);  // Bitwise or avoids a branch.
  }
  /// Does it see any of `count` keys from `first_key` on?
  [[nodiscard]] __device__ __forceinline__ bool sees_some(std::int32_t first_key, std::int32_t count) const {
    bool const meets = max(begin, first_key) < min(begin + length, first_key + count);
    return meets | is_among(token - first_key, count);
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ bool is_among(std::int32_t index, std::int32_t count) {
    return static_cast<std::uint32_t>(index) < static_cast<std::uint32_t>(count);
  }
};

/// Keys that the two rows of a thread see. Rows behind the sequence may have any values: their results are not stored.
struct RowsVisibility {
  std::int32_t first_token, begin[2], length[2];

  __device__ __forceinline__ RowsVisibility(HstuSequenceMask const& mask, std::int32_t row)
      : first_token(mask.token_of(row)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      HstuKeyRange const range = mask.keys_seen_by(row + 8 * r);
      begin[r] = range.begin;
      length[r] = min(range.end, mask.num_keys) - range.begin;
    }
  }

  /// Visibility of row 0 or 1 of the thread. Rows of the sequence never see keys behind it.
  [[nodiscard]] __device__ __forceinline__ QueryVisibility of_row(int r) const {
    return {begin[r], length[r], first_token + 8 * r};
  }
};

/// SiLU(2 h) = 2 h / (1 + exp(-2 h)) = h (1 + tanh(h)).
/// Example: h = 0.5, SiLU(1) = 0.5 (1 + tanh 0.5) = 0.5 * 1.4621 = 0.7311.
__device__ __forceinline__ float silu_of_twice(float h) { return fmaf(h, tanh_approximate(h), h); }

/// Computes the weight SiLU(2 h) = h (1 + t) with t = tanh(h), and its slope: twice the derivative by 2 h, (1 + t) (1 +
/// h (1 - t)). Both are 0 if `is_on` is false.
__device__ __forceinline__ void silu_and_derivative(float h, bool is_on, float& weight, float& slope) {
  float const t = tanh_approximate(h);
  weight = is_on ? fmaf(h, t, h) : 0.0F;
  slope = is_on ? fmaf(1 + t, fmaf(-h, t, h), 1 + t) : 0.0F;
}

}  // namespace headway::kernels
