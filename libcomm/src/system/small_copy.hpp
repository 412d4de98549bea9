// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

namespace headway::comm {

/// memcpy() for sizes that are mostly a few bytes: inlined, since the call would cost more than the copy. As for
/// memcpy(), the ranges must not overlap.
///
/// Two loads and two stores of a fixed size serve every size from that one to its double, without a loop. Eleven
/// bytes are copied as bytes 0 to 7 and bytes 3 to 10; bytes 3 to 7 are written twice, with the same values.
inline void copy_bytes(std::byte* to, std::byte const* from, std::size_t size) {
  // Copies two pieces of one size. The second ends where the bytes end, and may overlap the first.
  auto const copy_ends = [&]<std::size_t kPiece>() {
    std::byte first[kPiece], last[kPiece];
    std::memcpy(first, from, kPiece);
    std::memcpy(last, from + size - kPiece, kPiece);
    std::memcpy(to, first, kPiece);
    std::memcpy(to + size - kPiece, last, kPiece);
  };
  if (size > 64) {
    std::memcpy(to, from, size);
  } else if (size >= 32) {
    copy_ends.template operator()<32>();
  } else if (size >= 16) {
    copy_ends.template operator()<16>();
  } else if (size >= 8) {
    copy_ends.template operator()<8>();
  } else if (size >= 4) {
    copy_ends.template operator()<4>();
  } else if (size >= 2) {
    copy_ends.template operator()<2>();
  } else if (size == 1) {
    *to = *from;
  }
}

}  // namespace headway::comm
