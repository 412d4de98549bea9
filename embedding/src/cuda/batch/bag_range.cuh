// SPDX-License-Identifier: Apache-2.0

// Bag offsets in kernels. They are device memory, so the host cannot check them: the kernel that reads them does.

#pragma once

// <assert.h> declares __assert_fail only without NDEBUG. The macro is restored afterwards for other headers.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#include <assert.h>
#pragma pop_macro("NDEBUG")

#include <cstdint>
#include <cstdio>

namespace headway::embedding {

/// Keys [begin, end).
struct BagRange {
  std::uint32_t begin, end;
};

/// The keys of a bag. Invalid offsets fail a device assertion, which ends the CUDA context; stdout gets a line that
/// names them.
/// @param offsets (bags + 1), device memory; nullptr: each key is a bag
__device__ inline BagRange bag_range(std::int64_t const* offsets, std::uint64_t bag, std::uint32_t num_keys) {
  if (offsets == nullptr) return {static_cast<std::uint32_t>(bag), static_cast<std::uint32_t>(bag + 1)};
  std::int64_t const begin = offsets[bag], end = offsets[bag + 1];
  bool const is_good = 0 <= begin && begin <= end && end <= num_keys && (bag > 0 || begin == 0);
  if (!is_good) {
    printf("offsets of bags must grow from 0 to the %lld keys, and those of bag %lld are %lld and %lld\n",
           static_cast<long long>(num_keys), static_cast<long long>(bag), static_cast<long long>(begin),
           static_cast<long long>(end));
    __assert_fail("offsets of bags grow from 0 to the number of keys", __FILE__, __LINE__, "headway");
  }
  return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
}

}  // namespace headway::embedding
