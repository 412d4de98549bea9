// SPDX-License-Identifier: Apache-2.0

// Example of the C++ API: every rank sends one number to each rank and checks the numbers that it receives.
// Start one process per rank. All ranks name the same directory; the FileStore in it lets them find each other:
//   for rank in 0 1 2; do ./exchange $rank 3 /tmp/meeting-place & done; wait

#include <headway/comm/group.hpp>
#include <headway/comm/store.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <vector>

namespace {

namespace comm = headway::comm;

constexpr comm::DataType kInt = 1;  ///< Element type code. The library only checks that all ranks use the same one.

int number_for(int source, int destination) { return 100 * source + destination; }

/// Exchanges one number with every rank, including the own one. @returns the number of wrong values received.
int exchange(comm::Group& group) {
  int const size = group.size();
  std::vector<int> sent(size), received(size);
  std::vector<std::span<std::byte const>> sends;
  std::vector<std::span<std::byte>> receives;
  for (int rank = 0; rank < size; ++rank) {
    sent[rank] = number_for(group.rank(), rank);
    sends.push_back(std::as_bytes(std::span(&sent[rank], 1)));
    receives.push_back(std::as_writable_bytes(std::span(&received[rank], 1)));
  }

  comm::OperationPtr operation = group.all_to_all_v({.sends = sends, .receives = receives, .data_type = kInt});
  if (comm::Status const status = group.wait(*operation); !status.ok()) {
    throw comm::OperationError(status);
  }

  int wrong = 0;
  for (int rank = 0; rank < size; ++rank) {
    wrong += received[rank] != number_for(rank, group.rank());
  }
  return wrong;
}

}  // namespace

int main(int argument_count, char** arguments) try {
  if (argument_count != 4) {
    std::fprintf(stderr, "usage: %s RANK SIZE DIRECTORY\n", arguments[0]);
    return 2;
  }
  int const rank = std::atoi(arguments[1]);
  int const size = std::atoi(arguments[2]);
  comm::FileStore store(arguments[3]);
  // max_lag: a rank may run at most one exchange ahead of the slowest rank.
  auto group = comm::Group::connect(rank, size, store, {.max_lag = 1});

  int const wrong = exchange(*group);
  std::printf("rank %d of %d: %s\n", rank, size, wrong == 0 ? "all numbers are right" : "WRONG NUMBERS");
  return wrong == 0 ? 0 : 1;
} catch (std::exception const& error) {
  std::fprintf(stderr, "exchange: %s\n", error.what());
  return 1;
}
