#include "headway/embedding/initializer.hpp"

#include "headway/comm/status.hpp"
#include "headway/embedding/philox.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>

namespace headway::embedding {

namespace {

constexpr std::size_t kWords = 4;  // Of one call of philox().

std::array<float, kWords> uniform_of(std::array<std::uint32_t, kWords> const& words, float low, float range) {
  std::array<float, kWords> values{};
  for (std::size_t i = 0; i < kWords; ++i) {
    // 24 bits times 24 bits fit a double, so that a fused multiplication and addition gives the same.
    double const share = static_cast<double>(words[i] >> 8) * 0x1p-24;
    values[i] = static_cast<float>(share * range + low);
  }
  return values;
}

std::array<float, kWords> normal_of(std::array<std::uint32_t, kWords> const& words, float mean, float deviation) {
  std::array<float, kWords> values{};
  for (std::size_t i = 0; i < kWords; i += 2) {
    double const radius = std::sqrt(-2 * std::log((static_cast<double>(words[i]) + 0.5) * 0x1p-32));
    double const angle = 2 * std::numbers::pi * static_cast<double>(words[i + 1]) * 0x1p-32;
    values[i] = static_cast<float>(radius * std::cos(angle) * deviation + mean);
    values[i + 1] = static_cast<float>(radius * std::sin(angle) * deviation + mean);
  }
  return values;
}

}  // namespace

Initializer::Initializer(Law law, float base, float width, std::uint64_t seed)
    : law_(law), base_(base), width_(width), seed_(seed) {
  comm::expects(std::isfinite(base) && std::isfinite(width) && width >= 0,
                "initial values need finite limits, and a range or deviation from 0: not " + std::to_string(base) +
                    " and " + std::to_string(width));
}

Initializer Initializer::constant(float value) { return {Law::kConstant, value, 0, 0}; }

Initializer Initializer::uniform(float low, float high, std::uint64_t seed) {
  return {Law::kUniform, low, high - low, seed};
}

Initializer Initializer::normal(float mean, float deviation, std::uint64_t seed) {
  return {Law::kNormal, mean, deviation, seed};
}

void Initializer::fill(Key key, std::span<float> vector) const {
  if (law_ == Law::kConstant) {
    std::ranges::fill(vector, base_);
    return;
  }
  for (std::size_t first = 0; first < vector.size(); first += kWords) {
    auto const words = philox({static_cast<std::uint32_t>(key.id), static_cast<std::uint32_t>(key.id >> 32), key.table,
                               static_cast<std::uint32_t>(first / kWords)},
                              seed_);
    auto const values = law_ == Law::kUniform ? uniform_of(words, base_, width_) : normal_of(words, base_, width_);
    std::copy_n(values.begin(), std::min(kWords, vector.size() - first),
                vector.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

}  // namespace headway::embedding
