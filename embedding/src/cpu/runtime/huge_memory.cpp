// SPDX-License-Identifier: Apache-2.0

// Memory in huge pages (2 MiB), by mmap and madvise. A table of some GiB has millions of random accesses per second;
// with pages of 4 KiB almost each of them would also miss the TLB.

#include "cpu/runtime/huge_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace headway::embedding {

HugeMemory::HugeMemory(std::size_t num_bytes, Pages pages)
    : num_bytes_((num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes), pages_(pages) {
  std::size_t const reserved = num_bytes_ + kPageBytes;  // Enough for alignment to a huge page.
  void* const mapped =
      mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(mapped);
  std::size_t const before = (kPageBytes - reinterpret_cast<std::uintptr_t>(begin) % kPageBytes) % kPageBytes;
  data_ = begin + before;
  // Unmap both ends, so that what is left is aligned.
  if (before > 0) munmap(begin, before);
  munmap(data_ + num_bytes_, kPageBytes - before);
  madvise(data_, num_bytes_, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // Advice: small pages do too.
}

void HugeMemory::use_huge_pages() {
  pages_ = Pages::kHuge;
  madvise(data_, num_bytes_, MADV_HUGEPAGE);
}

HugeMemory::~HugeMemory() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
}

void HugeMemory::swap(HugeMemory& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(pages_, other.pages_);
}

}  // namespace headway::embedding
