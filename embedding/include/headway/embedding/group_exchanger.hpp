// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/comm/group.hpp"
#include "headway/embedding/exchanger.hpp"

#include <exception>
#include <utility>

namespace headway::embedding {

/// Exchanges over a channel of a comm::Group, of blocks in host memory. Programs that use it link headway::comm beside headway::embedding.
class GroupExchanger final : public Exchanger {
 public:
  /// @param group must outlive the exchanger
  /// @param channel of the group. While the exchanger exists, nothing else may use it, nor send messages whose `match`
  ///   has bit 62 set.
  explicit GroupExchanger(comm::Group& group, int channel = 0) : group_(group), channel_(channel) {}

  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int size() const override { return group_.size(); }
  [[nodiscard]] bool takes_capacities() const override { return true; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::span<std::size_t> received_bytes = {}) override {
    return std::make_unique<Started>(group_, group_.all_to_all_v({.sends = sends,
                                                                  .receives = receives,
                                                                  .data_type = kBytes,
                                                                  .channel = channel_,
                                                                  .received_bytes = received_bytes}));
  }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer,
                                               std::uint64_t number) override {
    return std::make_unique<Started>(group_, group_.send(block, peer, match_of(number), kBytes));
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number) override {
    return std::make_unique<Started>(group_, group_.receive(block, peer, match_of(number), kBytes));
  }

 private:
  static constexpr comm::DataType kBytes = 0;  ///< Blocks are bytes to the group.

  /// Messages between two ranks do not belong to a channel, so their numbers tell exchangers of a group apart.
  [[nodiscard]] std::uint64_t match_of(std::uint64_t number) const {
    return std::uint64_t{1} << 62 | static_cast<std::uint64_t>(channel_) << 48 | number;
  }

  class Started final : public Exchange {
   public:
    Started(comm::Group& group, comm::OperationPtr operation) : group_(group), operation_(std::move(operation)) {}
    /// Waits, since the group writes to the blocks until the operation is done.
    ~Started() override {
      if (operation_ == nullptr) return;
      try {
        static_cast<void>(group_.wait(*operation_));
      } catch (std::exception const&) {  // The group has failed, so it no longer uses the blocks.
      }
    }
    Started(Started const&) = delete;
    Started& operator=(Started const&) = delete;
    void wait() override {
      auto const operation = std::exchange(operation_, nullptr);
      if (operation == nullptr) return;
      if (auto const status = group_.wait(*operation); !status.ok()) throw comm::OperationError(status);
    }

   private:
    comm::Group& group_;
    comm::OperationPtr operation_;
  };

  comm::Group& group_;
  int channel_;
};

}  // namespace headway::embedding
