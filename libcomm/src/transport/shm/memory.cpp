// SPDX-License-Identifier: Apache-2.0

// Memory files of the shared-memory transport.
//
// Layout of a file: Control, one Inbox per source, then the receive buffer from the next page on. Example: 4 ranks.
// An Inbox has 64 cells of 64 bytes and a counter: 4,224 bytes. The head is 128 + 4 * 4,224 = 17,024 bytes, rounded
// up to 20,480, where the receive buffer begins.

#include "transport/shm/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace headway::comm::shm {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kLeastHugeBytes = 4 * kHugePageBytes;  ///< Smaller receive buffers gain nothing from huge pages.

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t receive_buffer_offset(int size) {
  return round_up(sizeof(Control) + static_cast<std::size_t>(size) * sizeof(Inbox), kPageBytes);
}

std::string what(std::size_t bytes) {
  return "the shared ring needs " + std::to_string(bytes) +
         " bytes of address space per rank; lower slot_bytes, max_lag_limit or num_channels";
}

}  // namespace

Mapping::Mapping(base::FileDescriptor const& file, std::size_t offset, std::size_t num_bytes, Pages pages) {
  bool const is_huge = pages == Pages::kHuge;
  std::size_t const page_bytes = is_huge ? kHugePageBytes : static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  skipped_bytes_ = offset % page_bytes;
  mapped_bytes_ = round_up(skipped_bytes_ + num_bytes, page_bytes);
  void* const mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(),
                            static_cast<off_t>(offset - skipped_bytes_));
  if (mapped == MAP_FAILED) throw SystemError("mmap", errno, what(mapped_bytes_));
  base_ = static_cast<std::byte*>(mapped);
  if (is_huge) madvise(base_, mapped_bytes_, MADV_HUGEPAGE);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(skipped_bytes_, other.skipped_bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

Region Region::create(int size, std::size_t receive_buffer_bytes) {
  Region region;
  region.fd_ = base::FileDescriptor(memfd_create("headway", MFD_CLOEXEC));
  std::size_t const bytes = receive_buffer_offset(size) + receive_buffer_bytes;
  if (!region.fd_.valid()) throw SystemError("memfd_create", errno, "the shared ring");
  if (ftruncate(region.fd_.get(), static_cast<off_t>(bytes)) != 0) throw SystemError("ftruncate", errno, what(bytes));
  region.map_file(size, receive_buffer_bytes, {.offset = 0, .bytes = receive_buffer_bytes});
  return region;
}

Region Region::map(base::FileDescriptor fd, int size, std::size_t receive_buffer_bytes, ReceiveRange part) {
  Region region;
  region.fd_ = std::move(fd);
  region.map_file(size, receive_buffer_bytes, part);
  return region;
}

// The kernel allocates pages on their first write: an unused receive buffer costs address space only. A huge page must
// lie in one mapping as a whole, so the mapping of a part extends to the ends of its huge pages.
void Region::map_file(int size, std::size_t receive_buffer_bytes, ReceiveRange part) {
  std::size_t const head_bytes = receive_buffer_offset(size);
  head_ = Mapping(fd_, 0, head_bytes, Pages::kSmall);
  auto const pages = receive_buffer_bytes >= kLeastHugeBytes ? Pages::kHuge : Pages::kSmall;
  pages_ = Mapping(fd_, head_bytes + part.offset, part.bytes, pages);
  receive_buffer_ = {pages_.data(), part.bytes};
}

}  // namespace headway::comm::shm
