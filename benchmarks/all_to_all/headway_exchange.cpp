#include "program.hpp"

#include <headway/comm/group.hpp>
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

/// Blocks of one set in the form that Group takes.
struct CallBlocks {
  std::vector<std::span<std::byte const>> sends;
  std::vector<std::span<std::byte>> receives;
};

class HeadwayExchange final : public Exchange {
 public:
  explicit HeadwayExchange(std::unique_ptr<comm::Group> group) : group_(std::move(group)) {}

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
    pending_.push_back(group_->all_to_all_v({.sends = sets_[set].sends, .receives = sets_[set].receives}));
  }

  void finish_oldest() override {
    comm::Status const status = group_->wait(*pending_.front());
    if (!status.ok()) throw comm::OperationError(status);
    pending_.pop_front();
  }

  std::uint64_t reserved_bytes() override { return group_->stats().landing_bytes; }

 private:
  std::unique_ptr<comm::Group> group_;
  std::vector<CallBlocks> sets_;
  std::deque<comm::OperationPtr> pending_;
};

comm::Engine engine_named(std::string const& name) {
  if (name == "shm") return comm::Engine::kShm;
  return name == "tcp" ? comm::Engine::kTcp : comm::Engine::kAuto;
}

std::unique_ptr<Exchange> connect_headway(RankContext const& context, int lag, std::string const& name) {
  comm::GroupOptions options;
  options.max_lag = lag;
  options.name = name;
  options.timeout = context.settings.time_limit;
  options.connect_timeout = std::chrono::seconds(60);
  if (context.settings.slot_bytes) options.slot_bytes = *context.settings.slot_bytes;
  if (context.settings.pull_bytes) options.pull_bytes = *context.settings.pull_bytes;
  if (!context.settings.engine.empty()) options.engine = engine_named(context.settings.engine);
  comm::FileStore store(context.store / name);
  return std::make_unique<HeadwayExchange>(
      comm::Group::connect(context.identity.rank, context.identity.ranks, store, options));
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_program(argc, argv, "headway", Launch::kHereOrOutside, connect_headway);
}
