// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/runtime/device_buffer.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Last wanted value, as far as it is known: some of its highest bits, after the last pass all.
struct Selected {
  std::uint64_t value;       ///< Unknown bits are 0.
  std::uint64_t known_bits;  ///< Mask of the known bits.
  std::uint32_t num_wanted;  ///< Wanted values among those that have the known bits; 0: nothing is wanted at all.
};

/// State of a selection, in device memory; all zeros at first.
struct Selection {
  static constexpr std::uint32_t kDigitBits = 11, kNumDigits = 1U << kDigitBits, kNumPasses = 6;

  std::uint32_t num_values;                      ///< Values collected.
  std::uint32_t num_done_blocks[kNumPasses];     ///< Blocks of a pass that have added their counts.
  std::uint32_t counts[kNumPasses][kNumDigits];  ///< Values per digit, among those with the known bits.
  Selected after[kNumPasses];                    ///< Result of each pass.
};

/// Output of the kernels that collect values, in any order. They must not add more than the selection has room for.
struct Collected {
  std::uint64_t* values;
  std::uint32_t* num_values;
};

/// Finds the k least of n values on the device; the host knows neither k nor n. See radix_selection.cu. Usage:
/// collect values with kernels, call select_async(), then compare values with last() in a kernel. An object serves
/// one selection: its counters are not reset. Its memory is freed in the order of the stream of its construction.
class RadixSelection {
 public:
  RadixSelection(std::size_t most_values, cudaStream_t stream);

  [[nodiscard]] Collected collected() const { return {values_.data(), &selection_.data()->num_values}; }
  /// Selects among the collected values. @param num_wanted k, in device memory; if it exceeds n, all values are wanted
  void select_async(std::uint32_t const* num_wanted, cudaStream_t stream) const;
  /// Result of select_async(), in device memory: the last wanted value, and how many values equal to it are wanted.
  [[nodiscard]] Selected const* last() const { return &selection_.data()->after[Selection::kNumPasses - 1]; }

 private:
  DeviceBuffer<std::uint64_t> values_;
  DeviceBuffer<Selection> selection_;
};

}  // namespace headway::embedding
