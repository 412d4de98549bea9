// SPDX-License-Identifier: Apache-2.0

// Conformance of transports: random messages between all pairs of ranks at the same time.

#include "endpoint_conformance.hpp"
#include "headway/comm/endpoint.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

/// One rank's thread of an exchange of random messages between all pairs, checked byte by byte.
///
/// Each pair has kSlots slots in the receiver's receive buffer. Message m uses slot m mod kSlots. The sender first
/// waits for the acknowledgement (channel 1) of message m - kSlots.
class TrafficRank {
 public:
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kMaxBytes = 200000;
  static constexpr std::size_t kSlotStride = kMaxBytes + 2 * kHeaderBytes;  ///< A multiple of 64.

  static constexpr std::size_t receive_buffer_bytes(int size) {
    return static_cast<std::size_t>(size) * kSlots * kSlotStride;
  }

  TrafficRank(Endpoint& endpoint, std::uint16_t messages_per_peer, std::uint64_t seed)
      : endpoint_(endpoint),
        messages_(messages_per_peer),
        random_(seed + static_cast<std::uint64_t>(endpoint.rank())),
        peers_(static_cast<std::size_t>(endpoint.size())) {}

  /// Runs until all ranks are done. A rank that is done keeps polling for the others. @returns the error, or "".
  std::string run(std::atomic<int>& ranks_left) {
    Deadline const deadline = Clock::now() + 3 * kTestPatience;
    for (bool counted = false; ranks_left > 0 && error_.empty();) {
      if (Clock::now() > deadline) error_ = "rank " + std::to_string(endpoint_.rank()) + " ran out of patience";
      for (int peer = 0; peer < endpoint_.size(); ++peer) {
        if (peer != endpoint_.rank()) send_some(peer);
      }
      endpoint_.submit();
      if (!endpoint_.poll(sink_)) std::this_thread::yield();
      if (!counted && done()) {
        counted = true;
        --ranks_left;
      }
    }
    if (!error_.empty()) ranks_left = 0;
    return error_;
  }

 private:
  /// Header of a message: its payload is test_bytes(size, seed).
  struct Header {
    std::uint64_t size;
    std::uint64_t seed;
  };

  /// State of the messages to and from one peer.
  struct Peer {
    std::vector<std::vector<std::byte>> payloads = std::vector<std::vector<std::byte>>(kSlots);
    std::uint16_t sent = 0;
    std::set<std::uint16_t> acknowledged;  ///< Own messages that the peer has checked.
    std::set<std::uint16_t> received;
    std::vector<std::uint16_t> to_acknowledge;  ///< Messages received but not acknowledged yet.
  };

  /// Passes arrivals to the rank. An OOB message or a loss is an error.
  class Sink final : public ArrivalSink {
   public:
    explicit Sink(TrafficRank& rank) : rank_(rank) {}
    void arrived(int source, Tag tag) override { rank_.arrived(source, tag); }
    void on_oob(int, std::string_view text) override { rank_.error_ = "unexpected OOB message: " + std::string(text); }
    void lost(int, std::string_view reason) override { rank_.error_ = "unexpected loss: " + std::string(reason); }

   private:
    TrafficRank& rank_;
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  /// Offset of the slot of `message` in the receiver's receive buffer.
  static std::size_t slot_offset(int source, std::uint16_t message) {
    return (static_cast<std::size_t>(source) * kSlots + message % kSlots) * kSlotStride;
  }

  void arrived(int source, Tag tag) {
    Peer& from = peer(source);
    if (tag.channel == 1) {
      from.acknowledged.insert(tag.operation);
    } else if (from.received.insert(tag.operation).second) {
      check(source, tag.operation);
      from.to_acknowledge.push_back(tag.operation);
    }
  }

  void check(int source, std::uint16_t message) {
    auto const slot = endpoint_.receive_buffer().subspan(slot_offset(source, message));
    Header header{};
    std::memcpy(&header, slot.data(), sizeof header);
    std::uint64_t const expected_seed = message_seed(source, endpoint_.rank(), message);
    if (header.seed != expected_seed || header.size > kMaxBytes ||
        !same_bytes(slot.subspan(kHeaderBytes, header.size), test_bytes(header.size, header.seed))) {
      error_ = "message " + std::to_string(message) + " from rank " + std::to_string(source) + " to rank " +
               std::to_string(endpoint_.rank()) + " has wrong bytes";
    }
  }

  static std::uint64_t message_seed(int source, int target, std::uint16_t message) {
    return static_cast<std::uint64_t>(source) << 40 | static_cast<std::uint64_t>(target) << 20 | message;
  }

  /// Sends all due acknowledgements to `rank`, and one message if its slot is free.
  void send_some(int rank) {
    Peer& to = peer(rank);
    while (!to.to_acknowledge.empty()) {
      Tag const tag{.channel = 1, .operation = to.to_acknowledge.back()};
      if (!endpoint_.put({.peer = rank}, {}, {}, tag).ok()) return;
      to.to_acknowledge.pop_back();
    }
    bool const slot_is_free = to.sent < kSlots || to.acknowledged.count(static_cast<std::uint16_t>(to.sent - kSlots));
    if (to.sent < messages_ && slot_is_free) send_message(rank, to);
  }

  void send_message(int rank, Peer& to) {
    auto& payload = to.payloads[to.sent % kSlots];
    std::uint64_t const seed = message_seed(endpoint_.rank(), rank, to.sent);
    if (to.sent >= kSlots && endpoint_.flushed(rank) < endpoint_.put_count(rank)) return;
    payload = test_bytes(random_size(), seed);
    Header const header{payload.size(), seed};
    Destination const destination{.peer = rank, .offset = slot_offset(endpoint_.rank(), to.sent)};
    if (endpoint_.put(destination, std::as_bytes(std::span(&header, 1)), payload, Tag{.operation = to.sent}).ok()) {
      ++to.sent;
    }
  }

  /// Mostly small sizes, some zero and some large.
  std::size_t random_size() {
    switch (random_() % 8) {
      case 0:
        return 0;
      case 1:
        return random_() % kMaxBytes;
      case 2:
        return random_() % 20000;
      default:
        return random_() % 300;
    }
  }

  bool done() {
    for (int rank = 0; rank < endpoint_.size(); ++rank) {
      Peer const& other = peer(rank);
      if (rank != endpoint_.rank() && (other.acknowledged.size() < messages_ || other.received.size() < messages_ ||
                                       !other.to_acknowledge.empty())) {
        return false;
      }
    }
    return true;
  }

  Endpoint& endpoint_;
  std::uint16_t messages_;  ///< Messages to each peer.
  std::mt19937_64 random_;
  std::vector<Peer> peers_;
  Sink sink_{*this};
  std::string error_;
};

/// Runs all ranks at the same time, each in a thread of its own.
void run(EndpointGroup ranks, std::uint16_t messages_per_peer) {
  int const size = ranks.size();
  std::atomic<int> ranks_left{size};
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          errors[static_cast<std::size_t>(rank)] = TrafficRank(ranks[rank], messages_per_peer, 42).run(ranks_left);
        } catch (std::exception const& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
          ranks_left = 0;
        }
      });
    }
  }
  for (auto const& error : errors) EXPECT_EQ(error, "");
}

}  // namespace

TEST_P(TrafficConformance, TwoRanksExchangeRandomMessages) {
  run(connect(2, TrafficRank::receive_buffer_bytes(2)), 1500);
}
TEST_P(TrafficConformance, FourRanksExchangeRandomMessages) {
  run(connect(4, TrafficRank::receive_buffer_bytes(4)), 300);
}
TEST_P(TrafficConformance, EightRanksExchangeRandomMessages) {
  run(connect(8, TrafficRank::receive_buffer_bytes(8)), 60);
}

}  // namespace headway::comm
