// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/initial_values.hpp"
#include "headway/embedding/key.hpp"

#include <cstdint>
#include <span>

namespace headway::embedding {

/// Initial values of new rows. A value depends on seed, key and column alone: not on the number of ranks, the order of
/// keys or the device.
class Initializer {
 public:
  /// Values with these parameters, for example those of another initializer.
  /// @throws base::UsageError if a parameter is not finite; likewise below.
  static Initializer of(InitialValues const& values) { return Initializer(values); }
  /// All columns are `value`.
  static Initializer constant(float value);
  /// Uniform in [low, high]. The same bits on all devices.
  static Initializer uniform(float low, float high, std::uint64_t seed);
  /// Normal distribution, by Box-Muller in double precision. With mean 0, devices agree to 1 ulp.
  static Initializer normal(float mean, float deviation, std::uint64_t seed);

  /// Writes the initial embedding of `key`.
  void fill(Key key, std::span<float> embedding) const;
  [[nodiscard]] InitialValues const& values() const { return values_; }

 private:
  explicit Initializer(InitialValues const& values);

  InitialValues values_;
};

}  // namespace headway::embedding
