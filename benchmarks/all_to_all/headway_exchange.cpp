// SPDX-License-Identifier: Apache-2.0

// A group of libcomm is the system under test, called as a program in C++ would call it. At lag 0 (no call may stay
// pending) start() makes the whole blocking call, and finish_oldest() has nothing to wait for; with lag, start() only
// starts it.

#include "program.hpp"

#include <headway/comm/group.hpp>
#include <headway/comm/memory.hpp>
#include <headway/comm/store.hpp>

#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headway::benchmarks {

namespace {

/// Blocks of one set, in the form of Group's arguments.
struct CallBlocks {
  std::vector<std::span<std::byte const>> sends;
  std::vector<std::span<std::byte>> receives;
};

/// Exchange over a comm::Group. At lag 0 it uses the blocking call, as MPI does.
class HeadwayExchange final : public Exchange {
 public:
  explicit HeadwayExchange(std::unique_ptr<comm::Group> group)
      : group_(std::move(group)), is_blocking_(group_->options().max_lag == 0) {}

  void use(std::span<CallBuffers> sets) override {
    sets_.assign(sets.size(), {});
    for (std::size_t set = 0; set < sets.size(); ++set) {
      for (int peer = 0; peer < group_->size(); ++peer) {
        sets_[set].sends.emplace_back(sets[set].sends().block(peer));
        sets_[set].receives.emplace_back(sets[set].receives().block(peer));
      }
    }
  }

  void start(std::size_t set) override {
    comm::AllToAllArgs const args{.sends = sets_[set].sends, .receives = sets_[set].receives};
    if (is_blocking_) return expect_ok(group_->all_to_all_v_and_wait(args));
    pending_.push_back(group_->all_to_all_v(args));
  }

  void finish_oldest() override {
    if (is_blocking_) return;
    expect_ok(group_->wait(*pending_.front()));
    pending_.pop_front();
  }

  std::uint64_t reserved_bytes() override { return group_->monitor().stats().receive_buffer_bytes; }

 private:
  static void expect_ok(comm::Status const& status) {
    if (!status.ok()) throw comm::OperationError(status);
  }

  std::unique_ptr<comm::Group> group_;
  bool is_blocking_;  ///< At lag 0 start() does the whole exchange in one call, as with MPI.
  std::vector<CallBlocks> sets_;
  std::deque<comm::OperationPtr> pending_;  ///< Started operations, oldest first.
};

comm::Transport transport_named(std::string const& name) {
  if (name == "shm") return comm::Transport::kShm;
  if (name == "verbs") return comm::Transport::kVerbs;
  return name == "tcp" ? comm::Transport::kTcp : comm::Transport::kAuto;
}

std::unique_ptr<Exchange> connect_headway(RankContext const& context, int lag, std::string const& name) {
  comm::GroupOptions options;
  options.max_lag = lag;
  options.name = name;
  options.timeout = context.settings.time_limit;
  options.connect_timeout = std::chrono::seconds(60);
  if (context.settings.slot_bytes) options.slot_bytes = *context.settings.slot_bytes;
  if (context.settings.get_bytes) options.min_get_bytes = *context.settings.get_bytes;
  if (!context.settings.transport.empty()) options.transport = transport_named(context.settings.transport);
  comm::FileStore store(context.store / name);
  return std::make_unique<HeadwayExchange>(
      comm::Group::connect(context.identity.rank, context.identity.ranks, store, options));
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_program(argc, argv,
                     {.name = "headway",
                      .launch = Launch::kHereOrOutside,
                      .connect = connect_headway,
                      .allocate_registered = headway::comm::allocate});
}
