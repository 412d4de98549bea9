// SPDX-License-Identifier: Apache-2.0
#pragma once

// Endpoint that delays and reorders the puts of another endpoint.
//
// Idea: put() only queues. land_one() picks any submitted put and passes it to the endpoint below, data and tag
// together. This is the order that several queue pairs may produce. The source is read when the put lands, so a caller
// that reuses it too early is caught.
//
// Example: puts 1, 2, 3 to one peer are submitted. Put 3 lands first: flushed() stays 0. Put 1 lands: flushed() is 1.
// Put 2 lands: flushed() is 3.
//
// Invariants: only submitted puts land, and each lands once. flushed() counts the prefix of puts that have landed. At
// most `credit` puts to a peer are in flight.
// Complexity: land_one() takes O(puts in flight).

#include "headway/comm/endpoint.hpp"
#include "random.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace headway::comm::stress {

/// Delays the puts of another endpoint. Each put lands, data and tag together, when land_one() picks it. Its source is
/// read then.
class LateEndpoint final : public Endpoint {
 public:
  /// Lets at most `credit` puts to a peer be in flight; put() refuses more with kWouldBlock.
  LateEndpoint(std::unique_ptr<Endpoint> inner, std::size_t credit);

  /// Lands one submitted put, chosen at random. @returns false if there is none.
  bool land_one(Random& random);
  [[nodiscard]] std::size_t num_under_way() const { return under_way_.size(); }

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] PeerTraits traits(int peer) const override {
    PeerTraits traits = inner_->traits(peer);
    traits.copies_at_put = false;
    return traits;
  }
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return inner_->receive_buffer(); }
  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override;
  void submit() override { num_submitted_ = under_way_.size(); }
  [[nodiscard]] std::uint64_t put_count(int peer) const override { return peer_at(peer).num_put; }
  [[nodiscard]] std::uint64_t flushed(int peer) const override { return peer_at(peer).num_flushed; }
  bool poll(ArrivalSink& sink) override { return inner_->poll(sink); }
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override {
    return inner_->get(peer, address, local);
  }
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override {
    return inner_->claim(owner, offset, value);
  }
  void retract() noexcept override { inner_->retract(); }
  bool open_window(int peer, WindowId window, std::span<std::byte> memory) override {
    return inner_->open_window(peer, window, memory);
  }
  void close_window(int peer, WindowId window) override { inner_->close_window(peer, window); }
  void send_oob(int peer, std::string_view text) noexcept override { inner_->send_oob(peer, text); }
  void arm() override { inner_->arm(); }
  void disarm() override { inner_->disarm(); }
  void sleep(Deadline deadline) override { inner_->sleep(deadline); }
  void wake() noexcept override { inner_->wake(); }
  [[nodiscard]] int control_fd() const override { return inner_->control_fd(); }
  [[nodiscard]] int activity_fd() const override { return inner_->activity_fd(); }
  [[nodiscard]] HostShare host_share() const override { return inner_->host_share(); }
  [[nodiscard]] bool receives_by_polling() const override { return inner_->receives_by_polling(); }

 private:
  /// A put that has not landed yet.
  struct Put {
    Destination destination;
    std::array<std::byte, kMaxHeaderBytes> header;
    std::size_t header_bytes;
    std::span<std::byte const> payload;
    Tag tag;
    std::uint64_t number;  ///< Value of put_count() right after this put.
  };
  /// Puts to one peer.
  struct Peer {
    std::uint64_t num_put = 0, num_flushed = 0;
    std::size_t num_under_way = 0;
    std::deque<bool> landed;  ///< Entry i: has put num_flushed + 1 + i landed?
  };
  [[nodiscard]] Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] Peer const& peer_at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }

  std::unique_ptr<Endpoint> inner_;
  std::size_t credit_;
  std::vector<Peer> peers_;     ///< (size)
  std::vector<Put> under_way_;  ///< The first num_submitted_ of them may land.
  std::size_t num_submitted_ = 0;
};

}  // namespace headway::comm::stress
