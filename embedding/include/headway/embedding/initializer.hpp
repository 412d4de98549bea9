#pragma once

#include "headway/embedding/initial_values.hpp"
#include "headway/embedding/key.hpp"

#include <cstdint>
#include <span>

namespace headway::embedding {

/// What a new row begins with. It depends on the seed, the key and the column alone: not on how many ranks there are,
/// in which order keys come, or on which device.
class Initializer {
 public:
  /// @throws comm::UsageError if `value` is not finite; likewise below.
  static Initializer constant(float value);
  /// Evenly in [low, high]. The same bits on all devices.
  static Initializer uniform(float low, float high, std::uint64_t seed);
  /// Of this mean and standard deviation, by Box-Muller in double precision: with mean 0 equal to 1 ulp on all devices.
  static Initializer normal(float mean, float deviation, std::uint64_t seed);

  void fill(Key key, std::span<float> vector) const;
  [[nodiscard]] InitialValues const& values() const { return values_; }

 private:
  explicit Initializer(InitialValues const& values);

  InitialValues values_;
};

}  // namespace headway::embedding
