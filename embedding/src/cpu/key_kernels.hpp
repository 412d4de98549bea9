#pragma once

#include "bucket.hpp"
#include "cpu/directory.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

/// Consecutive keys of a batch.
struct KeyGroup {
  std::uint64_t const* ids;
  std::uint32_t const* tables;  ///< Null: `table` is that of all.
  std::uint32_t table;
  std::size_t size;
};

/// Where first buckets are: the highest kStripeBits of a hash choose an index, and the next ones a segment of it.
struct StripesView {
  static constexpr int kStripeBits = 12;

  std::uint8_t const* stripe_of_cell;            ///< (2^kStripeBits)
  DirectoryView<WideBucket> const* directories;  ///< (stripes)
};

/// The parts of a lookup that are done for a group of keys at a time, compiled for an instruction set.
struct KeyKernels {
  static constexpr std::size_t kGroup = 256;

  char const* instruction_set;
  /// low[i] = hash_of(key i).low
  void (*hash)(KeyGroup const& keys, std::uint64_t* low);
  /// Looks for key i in buckets[i]: its word; kEmpty if the key is absent; kErased if the probe has to go on. Then sets
  /// buckets[i] to the first bucket of another key, by the lower half of its hash, and prefetches it.
  void (*look_and_locate)(KeyGroup const& keys, RowWord* words, StripesView const& stripes,
                          std::uint64_t const* next_low, std::size_t num_next, WideBucket const** buckets);
};

/// Compiled from the same source, each by its file in simd/ with flags of its own; the latter two on x86-64 alone.
[[nodiscard]] KeyKernels baseline_key_kernels();
[[nodiscard]] KeyKernels avx2_key_kernels();
[[nodiscard]] KeyKernels avx512_key_kernels();

/// Kernels that this processor can run, the fastest last. All give the same results.
[[nodiscard]] std::span<KeyKernels const> usable_key_kernels();

}  // namespace headway::embedding
