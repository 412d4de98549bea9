#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "headway/kernels/host_device.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headway::embedding {

/// Integers of 32 or 64 bits.
struct Integers {
  void const* data = nullptr;
  std::size_t size = 0;
  bool are_wide = true;  ///< 64 bits.

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int64_t operator[](std::size_t i) const {
    return are_wide ? static_cast<std::int64_t const*>(data)[i] : static_cast<std::int32_t const*>(data)[i];
  }
};

/// What becomes of the vectors of a list.
enum class Pooling : std::uint8_t { kNone, kSum, kMean };

/// Lists of ids of one table, one after the other.
struct Feature {
  std::string_view name;
  std::uint32_t table = 0;
  Pooling pooling = Pooling::kNone;
  Integers ids{};                    ///< (ids)
  Integers lengths{};                ///< (lists)
  std::span<float const> weights{};  ///< (ids); empty: 1 each.

  [[nodiscard]] std::size_t num_bags() const { return pooling == Pooling::kNone ? ids.size : lengths.size; }
};

/// The lists of several features, one feature after the other, in memory that the caller gives.
struct JoinedFeatures {
  std::span<std::uint64_t> ids{};     ///< (ids)
  std::span<std::uint32_t> tables{};  ///< (ids)
  std::span<std::int64_t> offsets{};  ///< (bags + 1): a bag for each list that is pooled, else one for each id; or none
                                      ///< of them, where nothing is pooled.
  std::span<float> weights{};         ///< (ids), or empty where all are 1. Of a mean they have the number of its ids.
};

/// How much memory joined features take.
struct JoinedSizes {
  std::size_t ids = 0, lists = 0, bags = 0;
  bool has_bags = false, has_weights = false;
};
[[nodiscard]] JoinedSizes sizes_of(std::span<Feature const> features);

/// @throws comm::UsageError if lengths are negative or do not add up to the number of ids, or `out` is of other sizes
void join_features(std::span<Feature const> features, JoinedFeatures const& out);

/// The same on a device, whose memory all of it is; waits for nothing. Lengths that do not add up are an assertion
/// there.
/// @throws comm::UsageError if `out` is of other sizes, or there are 2^31 ids or more
void join_features(std::span<Feature const> features, JoinedFeatures const& out, CudaPlace const& place);

}  // namespace headway::embedding
