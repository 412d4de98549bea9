#pragma once

#include <chrono>
#include <filesystem>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// Barrier and gather between the ranks of one host through a mapped file: the same for all systems under test, so
/// that none of them is timed with a barrier of its own.
class Meeting {
 public:
  static constexpr int kMaxRanks = 256;
  static constexpr std::size_t kMaxValues = 16;

  /// Maps `file`, which the first rank makes. @throws std::system_error
  Meeting(std::filesystem::path const& file, int rank, int ranks, std::chrono::seconds time_limit);
  ~Meeting();
  Meeting(Meeting const&) = delete;
  Meeting& operator=(Meeting const&) = delete;

  /// Returns when all ranks have called it. @throws std::runtime_error if a rank failed or the time is over.
  void meet();
  /// Value i of every rank, in the order of ranks; at most kMaxValues.
  std::vector<std::vector<double>> gather(std::span<double const> values);
  /// Ends the meet() of all other ranks with an error.
  void fail() noexcept;

 private:
  struct Page;
  Page* page_;
  int rank_;
  int ranks_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace headway::benchmarks
