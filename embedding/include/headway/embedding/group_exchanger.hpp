// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/comm/group.hpp"
#include "headway/embedding/exchanger.hpp"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace headway::embedding {

/// Exchanges over a channel of a comm::Group, of blocks in host memory. Programs that use it link headway::comm beside
/// headway::embedding.
class GroupExchanger final : public Exchanger {
 public:
  /// @param group must outlive the exchanger
  /// @param channel of the group. All ranks start the exchanges on it in one order, whoever starts them. Nothing else
  ///   may send messages whose `match` has bit 62 set.
  /// @param while_waiting called every 200 ms of a wait; an exception of it ends the wait. None: nothing is called
  explicit GroupExchanger(comm::Group& group, int channel = 0, std::function<void()> while_waiting = {})
      : group_(group), channel_(channel), while_waiting_(std::move(while_waiting)) {}

  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int size() const override { return group_.size(); }
  [[nodiscard]] bool takes_capacities() const override { return true; }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::span<std::size_t> received_bytes = {}) override {
    return started(group_.all_to_all_v({.sends = sends,
                                        .receives = receives,
                                        .data_type = kBytes,
                                        .channel = channel_,
                                        .received_bytes = received_bytes}));
  }
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer,
                                               std::uint64_t number) override {
    return started(group_.send(block, peer, match_of(number), kBytes));
  }
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number) override {
    return started(group_.receive(block, peer, match_of(number), kBytes));
  }

 private:
  static constexpr comm::DataType kBytes = 0;  ///< Blocks are bytes to the group.

  /// Messages between two ranks do not belong to a channel, so their numbers tell exchangers of a group apart.
  [[nodiscard]] std::uint64_t match_of(std::uint64_t number) const {
    return std::uint64_t{1} << 62 | static_cast<std::uint64_t>(channel_) << 48 | number;
  }

  [[nodiscard]] std::unique_ptr<Exchange> started(comm::OperationPtr operation) const {
    return std::make_unique<Started>(group_, std::move(operation), while_waiting_);
  }

  class Started final : public Exchange {
   public:
    Started(comm::Group& group, comm::OperationPtr operation, std::function<void()> while_waiting)
        : group_(group), operation_(std::move(operation)), while_waiting_(std::move(while_waiting)) {}
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
      if (operation_ == nullptr) return;
      auto const end = std::chrono::steady_clock::now() + group_.options().timeout;
      while (while_waiting_ && !operation_->done() && std::chrono::steady_clock::now() < end) {
        static_cast<void>(group_.wait(*operation_, kSlice));
        if (!operation_->done()) while_waiting_();
      }
      auto const operation = std::exchange(operation_, nullptr);
      if (auto const status = group_.wait(*operation); !status.ok()) throw comm::OperationError(status);
    }

   private:
    static constexpr std::chrono::milliseconds kSlice{200};

    comm::Group& group_;
    comm::OperationPtr operation_;
    std::function<void()> while_waiting_;
  };

  comm::Group& group_;
  int channel_;
  std::function<void()> while_waiting_;
};

}  // namespace headway::embedding
