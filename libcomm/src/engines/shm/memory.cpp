#include "engines/shm/memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

namespace headway::comm::shm {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = 2 * 1024 * 1024;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t landing_offset(int size) {
  return round_up(sizeof(Control) + static_cast<std::size_t>(size) * sizeof(Inbox), kPageBytes);
}

std::string what(std::size_t bytes) {
  return "the shared ring needs " + std::to_string(bytes) +
         " bytes of address space per rank; lower slot_bytes, max_lag_limit or num_channels";
}

}  // namespace

Region Region::create(int size, std::size_t landing_bytes) {
  Region region;
  region.fd_ = FileDescriptor(memfd_create("headway", MFD_CLOEXEC));
  std::size_t const bytes = landing_offset(size) + landing_bytes;
  if (!region.fd_.valid()) throw SystemError("memfd_create", errno, what(bytes));
  if (ftruncate(region.fd_.get(), static_cast<off_t>(bytes)) != 0) throw SystemError("ftruncate", errno, what(bytes));
  region.map_file(size, landing_bytes);
  return region;
}

Region Region::map(FileDescriptor fd, int size, std::size_t landing_bytes) {
  Region region;
  region.fd_ = std::move(fd);
  region.map_file(size, landing_bytes);
  return region;
}

void Region::map_file(int size, std::size_t landing_bytes) {
  landing_offset_ = landing_offset(size);
  landing_bytes_ = landing_bytes;
  mapped_bytes_ = landing_offset_ + landing_bytes;
  void* const mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (mapped == MAP_FAILED) throw SystemError("mmap", errno, what(mapped_bytes_));
  base_ = static_cast<std::byte*>(mapped);
  // Pages appear when they are first written: an unused ring costs address space only.
  if (landing_bytes >= 4 * kHugePageBytes) madvise(base_, mapped_bytes_, MADV_HUGEPAGE);
}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(landing_offset_, other.landing_offset_);
  std::swap(landing_bytes_, other.landing_bytes_);
  return *this;
}

Region::~Region() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

}  // namespace headway::comm::shm
