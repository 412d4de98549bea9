// SPDX-License-Identifier: Apache-2.0
#include "process_group/timed_exchanger.hpp"

#include "batch_memory.hpp"

#include <chrono>

namespace headway::embedding {

namespace {

class TimedExchange final : public Exchanger::Exchange {
 public:
  TimedExchange(std::unique_ptr<Exchange> below, std::shared_ptr<WaitTimer> timer)
      : below_(std::move(below)), timer_(std::move(timer)) {}
  void wait() override { timer_->measure(*below_); }
  [[nodiscard]] bool is_done() override { return below_->is_done(); }
  void wait_on(CudaStream stream) override { below_->wait_on(stream); }

 private:
  std::unique_ptr<Exchange> below_;
  std::shared_ptr<WaitTimer> timer_;
};

}  // namespace

void WaitTimer::enable(bool is_enabled) {
  std::lock_guard const lock(mutex_);
  is_enabled_ = is_enabled;
  seconds_ = 0;
  events_.clear();
}

bool WaitTimer::is_enabled() const {
  std::lock_guard const lock(mutex_);
  return is_enabled_;
}

void WaitTimer::measure(Exchanger::Exchange& exchange) {
  if (!is_enabled()) return exchange.wait();
  if (device_.is_cpu()) {
    auto const begin = std::chrono::steady_clock::now();
    exchange.wait();
    std::lock_guard const lock(mutex_);
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return;
  }
  auto const stream = current_stream(device_);
  auto const flag = c10::EventFlag::BACKEND_DEFAULT;  // With a time stamp.
  std::pair<c10::Event, c10::Event> events(c10::Event(device_.type(), flag), c10::Event(device_.type(), flag));
  events.first.record(stream);
  exchange.wait();
  events.second.record(stream);
  std::lock_guard const lock(mutex_);
  events_.push_back(std::move(events));
}

double WaitTimer::seconds() {
  std::lock_guard const lock(mutex_);
  for (auto& [begin, end] : events_) {
    end.synchronize();
    seconds_ += begin.elapsedTime(end) / 1e3;
  }
  events_.clear();
  return seconds_;
}

std::unique_ptr<Exchanger::Exchange> TimedExchanger::start(std::span<std::span<std::byte const> const> sends,
                                                           std::span<std::span<std::byte> const> receives,
                                                           std::shared_ptr<void const> memory,
                                                           std::span<std::size_t> received_bytes) {
  return std::make_unique<TimedExchange>(below_->start(sends, receives, std::move(memory), received_bytes), timer_);
}

std::unique_ptr<Exchanger::Exchange> TimedExchanger::send(std::span<std::byte const> block, int peer,
                                                          std::uint64_t number, std::shared_ptr<void const> memory) {
  return std::make_unique<TimedExchange>(below_->send(block, peer, number, std::move(memory)), timer_);
}

std::unique_ptr<Exchanger::Exchange> TimedExchanger::receive(std::span<std::byte> block, int peer, std::uint64_t number,
                                                             std::shared_ptr<void const> memory) {
  return std::make_unique<TimedExchange>(below_->receive(block, peer, number, std::move(memory)), timer_);
}

}  // namespace headway::embedding
