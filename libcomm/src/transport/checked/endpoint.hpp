// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "transport/checked/call_guard.hpp"
#include "transport/checked/fault_schedule.hpp"
#include "transport/checked/source_ledger.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {

/// Wraps any transport and verifies the Endpoint contract on both sides. A breach by the caller throws UsageError, one
/// by the wrapped transport std::logic_error. send_oob() cannot throw, so the next call does.
/// With a fault seed it also delays, repeats and reorders arrivals (FaultSchedule). Cost: one checksum of every payload
/// at its put and one at its flush. The algorithm is explained in endpoint.cpp.
class CheckedEndpoint final : public Endpoint {
 public:
  /// `fault_seed` 0 injects no faults.
  CheckedEndpoint(std::unique_ptr<Endpoint> inner, std::uint64_t fault_seed);
  ~CheckedEndpoint() override;

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] PeerTraits traits(int peer) const override;
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return inner_->receive_buffer(); }

  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override;
  void prepare(Destination const& destination, std::size_t header_bytes, std::size_t payload_bytes) override;
  void submit() override;
  [[nodiscard]] std::uint64_t put_count(int peer) const override;
  [[nodiscard]] std::uint64_t flushed(int peer) const override;
  /// Also true while an arrival is held back, so that no caller goes to sleep over it.
  bool poll(ArrivalSink& sink) override;
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override;
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override;
  void retract() noexcept override;
  bool open_window(int peer, WindowId window, std::span<std::byte> memory) override;
  void close_window(int peer, WindowId window) override;
  void send_oob(int peer, std::string_view text) noexcept override;

  [[nodiscard]] bool wants_keep_alive() const override { return inner_->wants_keep_alive(); }
  void keep_alive() override;
  void arm() override;
  void disarm() override;
  void sleep(Deadline deadline) override;
  void wake() noexcept override { inner_->wake(); }
  [[nodiscard]] int control_fd() const override;
  [[nodiscard]] int activity_fd() const override;
  [[nodiscard]] HostShare host_share() const override { return inner_->host_share(); }
  [[nodiscard]] bool receives_by_polling() const override { return inner_->receives_by_polling(); }

 private:
  class Inspector;
  class HeldSignal;

  /// Observed state of one peer.
  struct Peer {
    SourceLedger sources;
    std::uint64_t flushed = 0;  ///< Last value that the wrapped endpoint returned.
    bool lost = false;
  };

  /// @throws UsageError if `peer` is not another rank.
  void check_peer(std::string const& call, int peer) const;
  /// @throws UsageError if the arguments of a put are illegal.
  void check_put(std::string const& call, Destination const& destination, std::size_t header_bytes,
                 std::size_t payload_bytes) const;
  /// Throws the breach that send_oob() stored, if any.
  void throw_deferred_breach() const;
  [[noreturn]] void throw_transport_breach(std::string const& text) const;
  /// Checks flushed() and the checksums of all sources that it covers. @returns flushed().
  std::uint64_t settle_sources(int peer) const;
  /// Passes due arrivals of the fault schedule to `sink`. @returns whether any were due or are still held back.
  bool deliver_due(ArrivalSink& sink);

  std::unique_ptr<Endpoint> inner_;
  std::size_t receive_buffer_bytes_;
  mutable CallGuard guard_;
  mutable std::vector<Peer> peers_;             ///< (size) Mutable because flushed() settles sources.
  std::set<std::pair<int, WindowId>> windows_;  ///< (peer, window) between open_window() and close_window().
  std::optional<FaultSchedule> faults_;
  std::unique_ptr<HeldSignal> held_signal_;  ///< Null without faults.
  std::atomic<bool> holds_arrivals_{false};  ///< Read by sleep(), which may overlap poll().
  mutable std::atomic<char const*> deferred_breach_{nullptr};
};

}  // namespace headway::comm
