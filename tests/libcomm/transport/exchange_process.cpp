// SPDX-License-Identifier: Apache-2.0

// A rank in its own process that exchanges with the other ranks and checks every byte.
//   exchange_process RANK SIZE STORE_DIRECTORY TRANSPORT ADDRESS BYTES LAG EXCHANGES
// TRANSPORT is auto, tcp or verbs:DEVICE. ADDRESS "-" stands for any address. BYTES is the size of the largest
// block of an exchange. LAG is max_lag, the number of exchanges by which a rank may run ahead. EXCHANGES 0 means
// endless. With EXCHANGES "then_idle" a rank stops after LAG exchanges and waits until it learns that the group has
// failed. It prints "transports: ..." with the transport to each rank, "ready" after the first exchange, and
// "done SECONDS" or "failed: TEXT" at the end. It exits with 0 only when all exchanges are done.
#include "group/exchange.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <iostream>
#include <string>

namespace {

using namespace headway::comm;

void print_transports(Group& group) {
  std::cout << "transports:";
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != group.rank()) std::cout << ' ' << group.monitor().traits(peer).transport;
  }
  std::cout << std::endl;
}

void choose_transport(GroupOptions& options, std::string const& name) {
  std::string const verbs = "verbs:";
  if (name == "tcp") options.transport = Transport::kTcp;
  if (!name.starts_with(verbs)) return;
  options.transport = Transport::kVerbs;
  options.rdma_device = name.substr(verbs.size());
}

void exchange(Group& group, std::size_t bytes, std::size_t lag, std::uint64_t num_exchanges) {
  std::deque<Exchange> pending;
  auto const uneven = [&](int source, int destination) {
    return bytes * static_cast<std::size_t>(1 + (source + 2 * destination) % 3) / 3;
  };
  for (std::uint64_t number = 0; num_exchanges == 0 || number < num_exchanges; ++number) {
    pending.emplace_back(group.rank(), group.size(), number, uneven).start(group);
    if (pending.size() <= lag) continue;
    pending.front().finish(group);
    pending.pop_front();
    if (number == lag) std::cout << "ready" << std::endl;
  }
  for (; !pending.empty(); pending.pop_front()) pending.front().finish(group);
}

/// Makes no call until the group has failed. @throws OperationError then.
void idle(Group& group) {
  std::promise<Status> failure;
  group.admin().on_failure([&](Status const& status, auto const&...) { failure.set_value(status); });
  std::cout << "ready" << std::endl;
  throw OperationError(failure.get_future().get());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(120);
  try {
    int const rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
    FileStore store(argv[3]);
    GroupOptions options;
    choose_transport(options, argv[4]);
    if (std::string const address = argv[5]; address != "-") options.interface = address;
    options.slot_bytes = 16 * 1024;
    options.max_lag = std::atoi(argv[7]);
    options.connect_timeout = std::chrono::seconds(60);
    auto const group = Group::connect(rank, size, store, options);
    print_transports(*group);
    auto const start = Clock::now();
    bool const is_idle = std::string(argv[8]) == "then_idle";
    auto const lag = static_cast<std::size_t>(options.max_lag);
    exchange(*group, std::strtoul(argv[6], nullptr, 10), lag, is_idle ? lag : std::strtoull(argv[8], nullptr, 10));
    if (is_idle) idle(*group);
    Status const together = group->wait(*group->barrier());
    if (!together.ok()) throw OperationError(together);
    std::cout << "done " << std::chrono::duration<double>(Clock::now() - start).count() << std::endl;
    return 0;
  } catch (std::exception const& error) {
    std::cout << "failed: " << error.what() << std::endl;
    return 1;
  }
}
