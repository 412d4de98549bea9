#pragma once

#include "cuda/device_buffer.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// What is known of the last value that is wanted: some of its highest bits, in the end all.
struct Selected {
  std::uint64_t value;       ///< With zeros for those that are not known.
  std::uint64_t known_bits;  ///< As a mask.
  std::uint32_t num_wanted;  ///< Of the values that have these bits; 0: none is wanted at all.
};

/// The state of a selection, on the device; all zeros at first.
struct Selection {
  static constexpr std::uint32_t kDigitBits = 11, kNumDigits = 1U << kDigitBits, kNumPasses = 6;

  std::uint32_t num_values;
  std::uint32_t num_done_blocks[kNumPasses];
  std::uint32_t counts[kNumPasses][kNumDigits];  ///< Of values by their digit.
  Selected after[kNumPasses];
};

/// Values that kernels add, in any order, and as many as there is room for.
struct Collected {
  std::uint64_t* values;
  std::uint32_t* num_values;
};

/// Finds the least of some values without the host, which knows neither how many values there are nor how many are
/// wanted: digit by digit from the highest, as a radix sort would, but following only the values that have the digits
/// of the last one that is wanted.
class RadixSelection {
 public:
  RadixSelection(std::size_t most_values, cudaStream_t stream);

  [[nodiscard]] Collected collected() const { return {values_.data(), &selection_.data()->num_values}; }
  /// Once values are collected. @param num_wanted on the device; with more than there are values all are wanted
  void select_async(std::uint32_t const* num_wanted, cudaStream_t stream) const;
  /// On the device, after select_async(): the last value that is wanted, and how many that are equal to it.
  [[nodiscard]] Selected const* last() const { return &selection_.data()->after[Selection::kNumPasses - 1]; }

 private:
  DeviceBuffer<std::uint64_t> values_;
  DeviceBuffer<Selection> selection_;
};

}  // namespace headway::embedding
