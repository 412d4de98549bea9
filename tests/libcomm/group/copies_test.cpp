// SPDX-License-Identifier: Apache-2.0

// Replacements of memcpy(): copy_bytes() for a few bytes, and copy_streaming() with non-temporal stores.

#include "system/small_copy.hpp"
#include "system/streaming_copy.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace headway::comm {
namespace {

using Copy = void (*)(std::byte*, std::byte const*, std::size_t);

/// Copies `size` bytes from every seventh offset in a cache line to every offset, and checks the bytes around them as
/// well.
void expect_exact(Copy copy, std::size_t size) {
  constexpr std::size_t kMargin = 64;
  auto const source = test_bytes(size + 2 * kMargin, 3);
  for (std::size_t from = 0; from < kMargin; from += 7) {
    for (std::size_t to = 0; to < kMargin; ++to) {
      std::vector<std::byte> target(size + 2 * kMargin, std::byte{0xee});
      auto expected = target;
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), size,
                  expected.begin() + static_cast<std::ptrdiff_t>(to));
      copy(target.data() + to, source.data() + from, size);
      ASSERT_EQ(target, expected) << size << " bytes from " << from << " to " << to;
    }
  }
}

TEST(Copies, SmallOnesCopyWhatTheyAreAsked) {
  for (std::size_t size = 0; size < 200; ++size) expect_exact(copy_bytes, size);
}

TEST(Copies, StreamingOnesCopyWhatTheyAreAsked) {
  for (std::size_t size = 0; size < 200; ++size) expect_exact(copy_streaming, size);
  for (std::size_t const size : {4096, 5000, 65536 - 1}) expect_exact(copy_streaming, size);
}

}  // namespace
}  // namespace headway::comm
