// SPDX-License-Identifier: Apache-2.0

// A rank in its own process. It exchanges with the other ranks until it is killed or loses one of them.
//   rank_process RANK SIZE STORE_DIRECTORY TRANSPORT(shm|tcp|verbs) BYTES LAG WORK(exchanges|collectives) TIMEOUT_MS
// BYTES is the size of a block. LAG is max_lag: exchanges by which a rank may run ahead of the slowest. With WORK
// "collectives", a barrier, a broadcast or a ring of messages follows each exchange. It prints "ready" after more than
// 20 exchanges, "ready" again 20 exchanges after each SIGUSR1, and "failed: TEXT" when an operation fails. It exits
// with 0 only after such a failure.
#include "group/exchange.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"
#include "test_bytes.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

using namespace headway::comm;

volatile std::sig_atomic_t was_asked = 0;

void finish(Group& group, OperationPtr const& operation) {
  if (Status status = group.wait(*operation); !status.ok()) throw OperationError(std::move(status));
}

/// Runs the collective that follows exchange `number`, and checks its output if it has one.
void run_collective(Group& group, std::uint64_t number, std::size_t bytes) {
  int const root = static_cast<int>(number / 3 % static_cast<std::uint64_t>(group.size()));
  auto const expected = test_bytes(bytes, number);
  GuardedBytes block(bytes);
  switch (number % 3) {
    case 0:
      return finish(group, group.barrier());
    case 1:
      if (group.rank() == root) std::ranges::copy(expected, block.span().begin());
      finish(group, group.broadcast(block.span(), root, 1));
      break;
    default:  // Sends around the ring of ranks.
      auto const sent = group.send(expected, (group.rank() + 1) % group.size(), 7, 1);
      finish(group, group.receive(block.span(), (group.rank() + group.size() - 1) % group.size(), 7, 1));
      finish(group, sent);
  }
  if (!std::ranges::equal(block.span(), expected)) throw std::runtime_error("a collective brought wrong bytes");
}

void work_forever(Group& group, std::size_t bytes, std::size_t lag, bool with_collectives) {
  std::deque<Exchange> pending;
  std::uint64_t ready_at = lag + 20;
  for (std::uint64_t number = 0;; ++number) {
    pending.emplace_back(group.rank(), group.size(), number, even_sizes(bytes)).start(group);
    if (pending.size() > lag) {
      pending.front().finish(group);
      pending.pop_front();
    }
    if (with_collectives) run_collective(group, number, bytes);
    if (number == ready_at) std::cout << "ready" << std::endl;
    if (was_asked == 0) continue;
    was_asked = 0;
    ready_at = number + 20;
  }
}

Transport transport_named(std::string const& name) {
  if (name == "shm") return Transport::kShm;
  if (name == "tcp") return Transport::kTcp;
  if (name == "verbs") return Transport::kVerbs;
  throw std::invalid_argument("no transport " + name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(100);
  std::signal(SIGUSR1, [](int) { was_asked = 1; });
  try {
    int const rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
    FileStore store(argv[3]);
    GroupOptions options;
    options.transport = transport_named(argv[4]);
    options.slot_bytes = 4096;
    options.max_lag = std::atoi(argv[6]);
    options.timeout = std::chrono::milliseconds(std::atoi(argv[8]));
    auto const group = Group::connect(rank, size, store, options);
    work_forever(*group, std::strtoul(argv[5], nullptr, 10), static_cast<std::size_t>(options.max_lag),
                 std::string(argv[7]) == "collectives");
  } catch (OperationError const& error) {
    std::cout << "failed: " << error.what() << std::endl;
    return 0;
  } catch (std::exception const& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 3;
  }
}
