// SPDX-License-Identifier: Apache-2.0

// Base of the Group tests whose ranks are threads of one process, and the configurations in which they run.

#pragma once

#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {

/// One configuration of the Group tests: a transport, bare or under the checker, with or without faults.
struct GroupCase {
  char const* name;
  Transport transport;
  bool wrap_checked = false;     ///< Wrap the transport in a CheckedEndpoint, which checks its calls.
  std::uint64_t fault_seed = 0;  ///< Seed of delayed, repeated and reordered notifications; 0: none.
  bool allow_get = true;         ///< May receivers read blocks above slot_bytes from the sender? If not: fragments.
  int rdma_rails = 1;            ///< Queue pairs per peer.

  [[nodiscard]] GroupOptions options() const {
    GroupOptions options;
    options.transport = transport;
    options.wrap_checked = wrap_checked;
    options.fault_seed = fault_seed;
    options.slot_bytes = 4096;  // Small, so that blocks of a few KiB already exceed the receive slot of an exchange.
    options.allow_get = allow_get;
    options.rdma_rails = rdma_rails;
    options.timeout = std::chrono::seconds(30);
    options.connect_timeout = std::chrono::seconds(30);
    options.name = "test";
    return options;
  }
};

inline std::ostream& operator<<(std::ostream& out, GroupCase const& group_case) { return out << group_case.name; }

inline constexpr GroupCase kGroupCases[] = {
    {"inproc", Transport::kInproc},
    {"shm", Transport::kShm},
    {"tcp", Transport::kTcp},
    {"checked_inproc", Transport::kInproc, true},
    {"faulty_inproc", Transport::kInproc, true, 11},
    {"faulty_shm", Transport::kShm, true, 12},
    {"faulty_tcp", Transport::kTcp, true, 13},
    {"fragments_shm", Transport::kShm, false, 0, false},
    {"faulty_fragments_inproc", Transport::kInproc, true, 14, false},
};

inline constexpr GroupCase kRdmaGroupCases[] = {
    {"verbs", Transport::kVerbs},
    {"checked_verbs", Transport::kVerbs, true},
    {"faulty_verbs_two_rails", Transport::kVerbs, true, 15, true, 2},
};

/// Configurations of this run: those on an RDMA device if HEADWAY_TEST_RDMA is set, otherwise all others.
inline std::vector<GroupCase> group_cases() {
  if (std::getenv("HEADWAY_TEST_RDMA") != nullptr) return {std::begin(kRdmaGroupCases), std::end(kRdmaGroupCases)};
  return {std::begin(kGroupCases), std::end(kGroupCases)};
}

/// Base of the Group tests that run in every configuration.
class GroupTest : public testing::TestWithParam<GroupCase> {
 protected:
  static GroupOptions options() { return GetParam().options(); }

  /// Runs `body(rank)` in one thread per rank. An exception becomes a failure that names the rank.
  static void run_threads(int size, std::function<void(int)> const& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&body, rank] {
        try {
          body(rank);
        } catch (std::exception const& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
  }

  /// Connects a group of `size` ranks and runs `body` in one thread per rank.
  static void run_ranks(int size, GroupOptions const& options, std::function<void(Group&)> const& body) {
    MemoryStore store;
    run_threads(size, [&](int rank) {
      auto const group = Group::connect(rank, size, store, options);
      body(*group);
    });
  }

  /// Runs `body(thread)` in `count` threads of one rank. An exception becomes an error of this rank.
  template <typename Body>
  static void run_threads_of_rank(int count, Body body) {
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
    {
      std::vector<std::jthread> threads;
      for (int thread = 0; thread < count; ++thread) {
        threads.emplace_back([&, thread] {
          try {
            body(thread);
          } catch (...) {
            errors[static_cast<std::size_t>(thread)] = std::current_exception();
          }
        });
      }
    }
    for (auto const& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  /// Waits for `operation`. @throws OperationError if it fails.
  static void finish(Group& group, OperationPtr const& operation) {
    Status status = group.wait(*operation);
    if (!status.ok()) throw OperationError(std::move(status));
  }
};

/// Runs the tests of `Suite`, derived from GroupTest, in every configuration.
#define HEADWAY_TEST_GROUPS(Suite)                                         \
  INSTANTIATE_TEST_SUITE_P(Group, Suite, testing::ValuesIn(group_cases()), \
                           [](auto const& tested) { return std::string(tested.param.name); })

}  // namespace headway::comm
