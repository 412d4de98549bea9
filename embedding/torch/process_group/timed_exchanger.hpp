// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/exchanger.hpp"
#include "torch_headers.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Time that is spent in waits for exchanges: of the caller's thread on the CPU, of its stream on a device.
class WaitTimer {
 public:
  explicit WaitTimer(at::Device device) : device_(device) {}

  /// Turns measuring on or off, and sets the time to 0.
  void enable(bool is_enabled);
  [[nodiscard]] bool is_enabled() const;
  void measure(Exchanger::Exchange& exchange);
  /// Seconds so far. Waits for the device.
  [[nodiscard]] double seconds();

 private:
  at::Device device_;
  mutable std::mutex mutex_;
  bool is_enabled_ = false;
  double seconds_ = 0;
  std::vector<std::pair<c10::Event, c10::Event>> events_;  ///< Before and after each wait of a stream.
};

/// An exchanger whose calls of Exchange::wait() are measured. Everything else is that of `below`.
class TimedExchanger final : public Exchanger {
 public:
  TimedExchanger(std::unique_ptr<Exchanger> below, std::shared_ptr<WaitTimer> timer)
      : below_(std::move(below)), timer_(std::move(timer)) {}

  [[nodiscard]] int rank() const override { return below_->rank(); }
  [[nodiscard]] int size() const override { return below_->size(); }
  [[nodiscard]] bool takes_device_memory() const override { return below_->takes_device_memory(); }
  [[nodiscard]] bool takes_capacities() const override { return below_->takes_capacities(); }
  [[nodiscard]] std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                std::span<std::span<std::byte> const> receives,
                                                std::shared_ptr<void const> memory,
                                                std::span<std::size_t> received_bytes) override;
  [[nodiscard]] std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer, std::uint64_t number,
                                               std::shared_ptr<void const> memory) override;
  [[nodiscard]] std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number,
                                                  std::shared_ptr<void const> memory) override;
  [[nodiscard]] std::vector<std::string> all_gather(std::string const& text) override {
    return below_->all_gather(text);
  }

 private:
  std::unique_ptr<Exchanger> below_;
  std::shared_ptr<WaitTimer> timer_;
};

}  // namespace headway::embedding
