// SPDX-License-Identifier: Apache-2.0

// The exchanger of a single rank: an exchange copies the block that the rank sends to itself.

#include "headway/base/status.hpp"
#include "headway/embedding/exchanger.hpp"

#include <algorithm>

namespace headway::embedding {

namespace {

class LocalExchanger final : public Exchanger {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] bool takes_capacities() const override { return true; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> /*memory*/,
                                                std::span<std::size_t> received_bytes) override {
    base::expects(sends.size() == 1 && receives.size() == 1 && sends[0].size() <= receives[0].size(),
                  "an exchange of one rank has one block in each direction");
    base::expects(received_bytes.size() == 1 || sends[0].size() == receives[0].size(),
                  "the block to receive has the size of the one to send");
    std::ranges::copy(sends[0], receives[0].begin());
    if (!received_bytes.empty()) received_bytes[0] = sends[0].size();
    return std::make_unique<Done>();
  }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> /*block*/, int /*peer*/,
                                               std::uint64_t /*number*/,
                                               std::shared_ptr<void const> /*memory*/) override {
    throw base::UsageError("there is no other rank to send to");
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> /*block*/, int /*peer*/,
                                                  std::uint64_t /*number*/,
                                                  std::shared_ptr<void const> /*memory*/) override {
    throw base::UsageError("there is no other rank to receive from");
  }

 private:
  class Done final : public Exchange {
   public:
    void wait() override {}
    [[nodiscard]] bool is_done() override { return true; }
  };
};

}  // namespace

std::unique_ptr<Exchanger> make_local_exchanger() { return std::make_unique<LocalExchanger>(); }

}  // namespace headway::embedding
