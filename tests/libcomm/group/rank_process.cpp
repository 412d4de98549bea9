// A rank in a process of its own: exchanges with the others until it is killed or one of them is lost.
//   rank_process RANK SIZE STORE_DIRECTORY ENGINE(shm|tcp) BYTES LAG
// Prints "ready" once it exchanges and "failed: TEXT" when an exchange fails. Exits with 0 only on such a failure.
#include "group/exchange.hpp"
#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

namespace {

using namespace headway::comm;

void exchange_forever(Group& group, std::size_t bytes, std::size_t lag) {
  std::deque<Exchange> pending;
  for (std::uint64_t number = 0;; ++number) {
    pending.emplace_back(group.rank(), group.size(), number, even_sizes(bytes)).start(group);
    if (pending.size() <= lag) continue;
    pending.front().finish(group);
    pending.pop_front();
    if (number == lag + 20) std::cout << "ready" << std::endl;
  }
}

Engine engine_named(std::string const& name) {
  if (name == "shm") return Engine::kShm;
  if (name == "tcp") return Engine::kTcp;
  if (name == "verbs") return Engine::kVerbs;
  throw std::invalid_argument("no engine " + name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(100);
  try {
    int const rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
    FileStore store(argv[3]);
    GroupOptions options;
    options.engine = engine_named(argv[4]);
    options.slot_bytes = 4096;
    options.max_lag = std::atoi(argv[6]);
    auto const group = Group::connect(rank, size, store, options);
    exchange_forever(*group, std::strtoul(argv[5], nullptr, 10), static_cast<std::size_t>(options.max_lag));
  } catch (OperationError const& error) {
    std::cout << "failed: " << error.what() << std::endl;
    return 0;
  } catch (std::exception const& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 3;
  }
}
