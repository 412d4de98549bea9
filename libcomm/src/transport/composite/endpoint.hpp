// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "transport/doorbell.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace headway::comm {

/// Combines several transports over the same receive buffer into one endpoint. Each peer is reached by one of them.
class CompositeEndpoint final : public Endpoint {
 public:
  /// All transports are connected for the same rank of the same group and share one receive buffer, which the first one
  /// owns. `transport_of_peer` holds the transport's index for each rank; the own rank's entry is unused.
  CompositeEndpoint(std::vector<std::unique_ptr<Endpoint>> transports, std::vector<std::size_t> transport_of_peer);
  ~CompositeEndpoint() override;

  [[nodiscard]] int rank() const override { return owner().rank(); }
  [[nodiscard]] int size() const override { return owner().size(); }
  [[nodiscard]] PeerTraits traits(int peer) const override { return of(peer).traits(peer); }
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return owner().receive_buffer(); }
  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override {
    return of(destination.peer).put(destination, header, payload, tag);
  }
  void prepare(Destination const& destination, std::size_t header_bytes, std::size_t payload_bytes) override {
    of(destination.peer).prepare(destination, header_bytes, payload_bytes);
  }
  void submit() override;
  [[nodiscard]] std::uint64_t put_count(int peer) const override { return of(peer).put_count(peer); }
  [[nodiscard]] std::uint64_t flushed(int peer) const override { return of(peer).flushed(peer); }
  bool poll(ArrivalSink& sink) override;
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override {
    return of(peer).get(peer, address, local);
  }
  bool claim(int owning_rank, std::uint64_t offset, std::uint64_t value) override {
    return (owning_rank == rank() ? owner() : of(owning_rank)).claim(owning_rank, offset, value);
  }
  void retract() noexcept override;
  bool open_window(int peer, WindowId window, std::span<std::byte> memory) override {
    return of(peer).open_window(peer, window, memory);
  }
  void close_window(int peer, WindowId window) override { of(peer).close_window(peer, window); }
  void send_oob(int peer, std::string_view text) noexcept override { of(peer).send_oob(peer, text); }
  [[nodiscard]] bool wants_keep_alive() const override;
  void keep_alive() override;
  void arm() override;
  void disarm() override;
  void sleep(Deadline deadline) override;
  void wake() noexcept override { bell_.ring(); }
  [[nodiscard]] int control_fd() const override { return control_sockets_.get(); }
  [[nodiscard]] int activity_fd() const override { return activity_.get(); }
  [[nodiscard]] HostShare host_share() const override;
  [[nodiscard]] bool receives_by_polling() const override;

 private:
  /// The transport that owns the receive buffer.
  [[nodiscard]] Endpoint& owner() const { return *transports_.front(); }
  /// Transport that reaches `peer`. An invalid rank goes to the first transport, which rejects it.
  [[nodiscard]] Endpoint& of(int peer) const {
    auto const index = static_cast<std::size_t>(peer);
    return index < transport_of_peer_.size() ? *transports_[transport_of_peer_[index]] : owner();
  }

  std::vector<std::unique_ptr<Endpoint>> transports_;
  std::vector<std::size_t> transport_of_peer_;  ///< (size) Index into transports_ by rank.
  Doorbell bell_;
  /// epoll descriptors that nest those of all transports. `activity_` also nests the bell.
  base::FileDescriptor control_sockets_, activity_;
};

}  // namespace headway::comm
