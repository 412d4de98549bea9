// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace headway::comm {

/// memcpy() with streaming stores, for a destination that would not stay in cache: its lines are not read before they
/// are written. All stores are visible when it returns (store fence).
///
/// An ordinary store first reads the line that it changes, so a copy of n bytes moves 3 n bytes over the memory bus;
/// with streaming stores it moves 2 n. They pay off only for whole lines: the bytes up to the first line boundary of
/// the destination and those behind the last one are copied by memcpy(). A small copy, whose data is read again soon,
/// is better off with memcpy(): streamed lines have left the cache.
inline void copy_streaming(std::byte* to, std::byte const* from, std::size_t size) {
#if defined(__SSE2__)
  constexpr std::size_t kLineBytes = 64, kFetchAheadBytes = 1024;
  std::size_t at = (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes;
  if (at >= size) at = size;
  std::memcpy(to, from, at);
  for (; size - at >= kLineBytes; at += kLineBytes) {
    // Reads far enough ahead to hide the latency of memory. May point behind the source: a prefetch never faults.
    __builtin_prefetch(from + at + kFetchAheadBytes);
    for (std::size_t part = at; part < at + kLineBytes; part += sizeof(__m128i)) {
      __m128i const bytes = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + part));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part), bytes);
    }
  }
  std::memcpy(to + at, from + at, size - at);
  // Streaming stores are not ordered with later stores. Without the fence, a flag that says "data is there" could be
  // seen before the data.
  _mm_sfence();
#else
  std::memcpy(to, from, size);
#endif
}

}  // namespace headway::comm
