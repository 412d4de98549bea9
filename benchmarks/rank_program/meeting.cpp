#include "meeting.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>

namespace headway::benchmarks {

// The first state is all zero, which is the content of a new file.
struct Meeting::Page {
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> generation;
  alignas(64) std::atomic<std::uint32_t> failed;
  alignas(64) double values[kMaxRanks][kMaxValues];
};

Meeting::Meeting(std::filesystem::path const& file, int rank, int ranks, std::chrono::seconds time_limit)
    : rank_(rank), ranks_(ranks), deadline_(std::chrono::steady_clock::now() + time_limit) {
  if (ranks > kMaxRanks) throw std::invalid_argument("at most " + std::to_string(kMaxRanks) + " ranks");
  int const descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "open " + file.string());
  bool const sized = ::ftruncate(descriptor, sizeof(Page)) == 0;
  void* const mapped =
      sized ? ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
  int const error = errno;
  ::close(descriptor);
  if (mapped == MAP_FAILED) throw std::system_error(error, std::generic_category(), "map " + file.string());
  page_ = static_cast<Page*>(mapped);
}

Meeting::~Meeting() { ::munmap(page_, sizeof(Page)); }

void Meeting::meet() {
  // Spins first, since ranks with a core each should leave together. Then yields, for ranks that share a core.
  constexpr int kSpins = 20'000;
  std::uint32_t const generation = page_->generation.load(std::memory_order_acquire);
  if (page_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks_)) {
    page_->arrived.store(0, std::memory_order_relaxed);
    page_->generation.store(generation + 1, std::memory_order_release);  // Pairs with the acquire loads of generation.
    return;
  }
  for (int spin = 0; page_->generation.load(std::memory_order_acquire) == generation; ++spin) {
    if (spin < kSpins) continue;
    if (page_->failed.load(std::memory_order_relaxed) != 0) throw std::runtime_error("another rank failed");
    if (std::chrono::steady_clock::now() > deadline_) throw std::runtime_error("the time limit is over");
    ::sched_yield();
  }
}

std::vector<std::vector<double>> Meeting::gather(std::span<double const> values) {
  if (values.size() > kMaxValues) throw std::invalid_argument("too many values to gather");
  std::copy(values.begin(), values.end(), page_->values[rank_]);
  meet();
  std::vector<std::vector<double>> columns(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (int rank = 0; rank < ranks_; ++rank) columns[i].push_back(page_->values[rank][i]);
  }
  meet();  // A rank must not overwrite values that another one still reads.
  return columns;
}

void Meeting::fail() noexcept { page_->failed.store(1, std::memory_order_relaxed); }

}  // namespace headway::benchmarks
