// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// Barrier and gather between the ranks of one host, through a mapped file. All systems under test use it, so none is
/// timed with a barrier of its own.
class RankBarrier {
 public:
  static constexpr int kMaxRanks = 256;
  static constexpr std::size_t kMaxValues = 16;

  /// Maps `file`; the first rank to come creates it. @throws std::system_error
  RankBarrier(std::filesystem::path const& file, int rank, int ranks, std::chrono::seconds time_limit);
  ~RankBarrier();
  RankBarrier(RankBarrier const&) = delete;
  RankBarrier& operator=(RankBarrier const&) = delete;

  /// Returns when all ranks have called it. @throws std::runtime_error if a rank failed or the time is over.
  void wait();
  /// Gathers at most kMaxValues values. @returns entry [i][r] is value i of rank r.
  std::vector<std::vector<double>> gather(std::span<double const> values);
  /// Makes wait() throw on all other ranks.
  void fail() noexcept;

 private:
  struct Page;
  Page* page_;
  int rank_;
  int ranks_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace headway::benchmarks
