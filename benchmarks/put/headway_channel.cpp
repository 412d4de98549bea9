// SPDX-License-Identifier: Apache-2.0

// One-way messages through a Headway endpoint, for the comparison with plain verbs.

#include "headway_channel.hpp"

#include "bootstrap/control_socket.hpp"
#include "transport/verbs/device.hpp"
#include "transport/verbs/endpoint.hpp"

#include <headway/comm/group.hpp>
#include <headway/comm/memory.hpp>

#include <chrono>
#include <stdexcept>

namespace headway::benchmarks {

namespace {

constexpr auto kPatience = std::chrono::seconds(30);  ///< Longest wait for the other rank's connection.

/// Bytes of a receive slot: the transport's header, and the message rounded up to whole cache lines.
std::size_t padded(std::size_t bytes) { return comm::kHeaderBytes + (bytes + 63) / 64 * 64; }

}  // namespace

HeadwayChannel::HeadwayChannel(int rank, std::string const& device, std::size_t max_bytes, comm::Store& store)
    : peer_(1 - rank),
      slot_bytes_(padded(max_bytes)),
      memory_(comm::allocate(max_bytes)),
      source_(memory_.get(), max_bytes) {
  std::size_t const receive_buffer_bytes = slot_bytes_ * kSlots;
  comm::GroupOptions const options;
  // The settings that both ranks compare when they connect.
  comm::Agreement const agreement{.size = 2, .receive_buffer_bytes = receive_buffer_bytes, .options = &options};
  auto control_sockets = comm::connect_control_sockets(rank, agreement, store, comm::Clock::now() + kPatience);
  auto const address = comm::verbs::choose_address(device, control_sockets);
  address_ = {
      .device = address.device, .port = address.port, .gid_index = static_cast<std::uint8_t>(address.gid_index)};
  endpoint_ = comm::make_verbs_endpoint(rank, 2, std::move(control_sockets), receive_buffer_bytes,
                                        {.address = address, .cache_bytes = options.rdma_cache_bytes});
}

// A tag announces a message; its `operation` has the lowest 16 bits of the message's number.
void HeadwayChannel::Sink::arrived(int /*source*/, comm::Tag tag) {
  if (tag.operation != static_cast<std::uint16_t>(num_arrived)) error = "headway: a message is missing";
  ++num_arrived;
}

void HeadwayChannel::Sink::lost(int /*peer*/, std::string_view reason) { error = "headway: " + std::string(reason); }

void HeadwayChannel::poll() {
  endpoint_->poll(sink_);
  if (!sink_.error.empty()) throw std::runtime_error(sink_.error);
}

void HeadwayChannel::send(std::size_t size_bytes) {
  comm::Destination const destination{.peer = peer_, .offset = num_sent_ % kSlots * slot_bytes_};
  comm::Tag const tag{.operation = static_cast<std::uint16_t>(num_sent_)};
  std::span const payload = source_.first(size_bytes);
  while (true) {
    auto const status = endpoint_->put(destination, /*header=*/{}, payload, tag);
    if (status.ok()) break;
    if (status.code() != comm::StatusCode::kWouldBlock) throw std::runtime_error(std::string(status.message()));
    poll();
  }
  endpoint_->submit();
  ++num_sent_;
}

void HeadwayChannel::flush() {
  while (endpoint_->flushed(peer_) < endpoint_->put_count(peer_)) poll();
}

void HeadwayChannel::wait_for(std::uint64_t count) {
  while (sink_.num_arrived < count) poll();
}

std::span<std::byte> HeadwayChannel::slot(std::uint64_t seq) {
  return endpoint_->receive_buffer().subspan(seq % kSlots * slot_bytes_ + comm::kHeaderBytes,
                                             slot_bytes_ - comm::kHeaderBytes);
}

}  // namespace headway::benchmarks
