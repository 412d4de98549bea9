#pragma once

#include "headway/embedding/key.hpp"
#include "headway/embedding/philox.hpp"
#include "headway/kernels/host_device.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace headway::embedding {

/// Parameters and formula of an Initializer, usable in kernels.
struct InitialValues {
  enum class Law : std::uint8_t { kConstant, kUniform, kNormal };
  static constexpr std::size_t kAtOnce = 4;  ///< Values per call of philox().

  Law law = Law::kConstant;
  float base = 0, width = 0;  ///< kConstant: value; kUniform: lowest value, range; kNormal: mean, standard deviation.
  std::uint64_t seed = 0;

  /// Initial values of columns 4 * `block` to 4 * `block` + 3.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::array<float, kAtOnce> of(Key key, std::uint32_t block) const {
    if (law == Law::kConstant) return {base, base, base, base};
    auto const words =
        philox({static_cast<std::uint32_t>(key.id), static_cast<std::uint32_t>(key.id >> 32), key.table, block}, seed);
    return law == Law::kUniform ? uniform_of(words) : normal_of(words);
  }

 private:
  using Words = std::array<std::uint32_t, kAtOnce>;

  [[nodiscard]] HEADWAY_HOST_DEVICE std::array<float, kAtOnce> uniform_of(Words const& words) const {
    std::array<float, kAtOnce> values{};
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      // The product of two 24-bit mantissas is exact in double, so a fused multiply-add gives the same bits.
      double const share = static_cast<double>(words[i] >> 8) * 0x1p-24;
      values[i] = static_cast<float>(share * width + base);
    }
    return values;
  }
  [[nodiscard]] HEADWAY_HOST_DEVICE std::array<float, kAtOnce> normal_of(Words const& words) const {
    std::array<float, kAtOnce> values{};
    for (std::size_t i = 0; i < kAtOnce; i += 2) {
      double const radius = std::sqrt(-2 * std::log((static_cast<double>(words[i]) + 0.5) * 0x1p-32));
      double const angle = 2 * std::numbers::pi * static_cast<double>(words[i + 1]) * 0x1p-32;
      values[i] = static_cast<float>(radius * std::cos(angle) * width + base);
      values[i + 1] = static_cast<float>(radius * std::sin(angle) * width + base);
    }
    return values;
  }
};

}  // namespace headway::embedding
