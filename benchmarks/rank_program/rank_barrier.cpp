// SPDX-License-Identifier: Apache-2.0

// Barrier in one page of a file that all ranks map, with two words: a count of arrivals and a generation.
//
// A rank reads the generation, then adds itself to the count. The last one sets the count to 0 and raises the
// generation, for which the others wait. Example with 3 ranks: the counts are 1, 2, 3; rank 2 comes last, writes
// count 0 and generation 1, and ranks 0 and 1 see 1 instead of 0 and go on.
//
// Why it may be used again at once: the count is 0 before the generation changes, so a rank that is already in the
// next wait() begins at 1. It waits for generation 2, and none of the slow ranks can miss generation 1, because
// generation 2 needs their arrival too.
//
// A rank that failed cannot arrive. It sets `failed`, which the others look at after 20,000 spins.

#include "rank_barrier.hpp"

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
struct RankBarrier::Page {
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> generation;
  alignas(64) std::atomic<std::uint32_t> failed;
  alignas(64) double values[kMaxRanks][kMaxValues];
};

RankBarrier::RankBarrier(std::filesystem::path const& file, int rank, int ranks, std::chrono::seconds time_limit)
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

RankBarrier::~RankBarrier() { ::munmap(page_, sizeof(Page)); }

void RankBarrier::wait() {
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

std::vector<std::vector<double>> RankBarrier::gather(std::span<double const> values) {
  if (values.size() > kMaxValues) throw std::invalid_argument("too many values to gather");
  std::copy(values.begin(), values.end(), page_->values[rank_]);
  wait();
  std::vector<std::vector<double>> columns(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (int rank = 0; rank < ranks_; ++rank) columns[i].push_back(page_->values[rank][i]);
  }
  wait();  // A rank must not overwrite values that another one still reads.
  return columns;
}

void RankBarrier::fail() noexcept { page_->failed.store(1, std::memory_order_relaxed); }

}  // namespace headway::benchmarks
