// SPDX-License-Identifier: Apache-2.0
#include "headway/base/status.hpp"
#include "headway/embedding/exchanger.hpp"

#include <algorithm>

namespace headway::embedding {

namespace {

class LocalExchanger final : public Exchanger {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives) override {
    base::expects(sends.size() == 1 && receives.size() == 1 && sends[0].size() == receives[0].size(),
                  "an exchange of one rank has one block in each direction, of one size");
    std::ranges::copy(sends[0], receives[0].begin());
    return std::make_unique<Done>();
  }

 private:
  class Done final : public Exchange {
   public:
    void wait() override {}
  };
};

}  // namespace

std::unique_ptr<Exchanger> make_local_exchanger() { return std::make_unique<LocalExchanger>(); }

}  // namespace headway::embedding
