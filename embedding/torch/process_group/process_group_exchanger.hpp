// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/exchanger.hpp"
#include "torch_headers.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::embedding {

/// Exchanges over a process group of PyTorch with any backend, of tensors on one device. Errors of the group pass
/// through as they are. Blocks need exact sizes, not capacities. send() and receive() throw base::UsageError: only
/// a group of Headway has messages between two ranks.
class ProcessGroupExchanger final : public Exchanger {
 public:
  ProcessGroupExchanger(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device)
      : group_(std::move(group)), device_(device) {}

  [[nodiscard]] int rank() const override { return group_->getRank(); }
  [[nodiscard]] int size() const override { return group_->getSize(); }
  [[nodiscard]] bool takes_device_memory() const override { return true; }
  [[nodiscard]] bool takes_capacities() const override { return false; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> memory,
                                                std::span<std::size_t> received_bytes) override;
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer, std::uint64_t number,
                                               std::shared_ptr<void const> memory) override;
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number,
                                                  std::shared_ptr<void const> memory) override;
  [[nodiscard]] std::vector<std::string> all_gather(std::string const& text) override;

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::Device device_;
};

/// The exchanger of a process group for tensors on `device`. A group of Headway exchanges host memory directly, with
/// one round less per lookup: receive blocks may be upper bounds (capacities), so sizes are not exchanged before. Any
/// other group exchanges by its c10d calls.
[[nodiscard]] std::unique_ptr<Exchanger> make_exchanger(c10::intrusive_ptr<c10d::ProcessGroup> const& group,
                                                        at::Device device);

}  // namespace headway::embedding
