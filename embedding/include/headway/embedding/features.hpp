// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "headway/kernels/host_device.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headway::embedding {

/// A view of `size` integers of 32 or 64 bits.
struct Integers {
  void const* data = nullptr;
  std::size_t size = 0;
  bool are_wide = true;  ///< true: 64 bits each; false: 32.

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t operator[](std::size_t i) const {
    return are_wide ? static_cast<std::int64_t const*>(data)[i] : static_cast<std::int32_t const*>(data)[i];
  }
};

/// Pooling of a list: kNone keeps one embedding per id, kSum and kMean reduce a list to one embedding.
enum class Pooling : std::uint8_t { kNone, kSum, kMean };

/// A jagged feature: lists of ids of one table, concatenated. Example: "clicks" of three samples, [7, 9], [] and [4],
/// has ids = {7, 9, 4} and lengths = {2, 0, 1}. With kSum it gives three bags, of which the second is zero; with
/// kNone three bags of one id each.
struct Feature {
  std::string_view name;
  std::uint32_t table = 0;
  Pooling pooling = Pooling::kNone;
  Integers ids{};                    ///< (ids)
  Integers lengths{};                ///< (lists) Ids per list.
  std::span<float const> weights{};  ///< (ids); empty: 1 each.

  /// One bag per list if the feature is pooled, else one per id.
  [[nodiscard]] std::size_t num_bags() const { return pooling == Pooling::kNone ? ids.size : lengths.size; }
};

/// Several features concatenated, in memory that the caller owns.
struct JoinedFeatures {
  std::span<std::uint64_t> ids{};     ///< (ids)
  std::span<std::uint32_t> tables{};  ///< (ids) Table of each id.
  std::span<std::int64_t> offsets{};  ///< (bags + 1) One bag per pooled list, one per id of a feature without pooling;
                                      ///< empty if no feature is pooled.
  std::span<float> weights{};         ///< (ids), or empty if all are 1. join_features() has divided the weights of a
                                      ///< kMean feature by the length of their list, so a lookup only sums.
};

/// Sizes of JoinedFeatures: elements, and which of the optional arrays are present. `lists` counts the lists of all
/// features, pooled or not; `bags` is the number of rows that a lookup of the joined features returns.
struct JoinedSizes {
  std::size_t ids = 0, lists = 0, bags = 0;
  bool has_bags = false, has_weights = false;
};
/// The sizes that join_features() needs for `features`.
[[nodiscard]] JoinedSizes sizes_of(std::span<Feature const> features);

/// Concatenates features into `out`, in host memory.
/// @throws base::UsageError if lengths are negative or do not add up to the number of ids, or `out` is of other sizes
void join_features(std::span<Feature const> features, JoinedFeatures const& out);

/// The same for device memory; stream-ordered, never waits. Bad lengths fail an assertion on the device.
/// @throws base::UsageError if `out` is of other sizes, or there are 2^31 ids or more
void join_features(std::span<Feature const> features, JoinedFeatures const& out, CudaPlace const& place);

}  // namespace headway::embedding
