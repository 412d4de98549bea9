// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "message_channel.hpp"
#include "verbs_channel.hpp"

#include <headway/comm/endpoint.hpp>
#include <headway/comm/store.hpp>

#include <memory>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// MessageChannel over an Endpoint of the verbs transport, used as a group would: put, submit, and poll until the tag
/// arrives.
class HeadwayChannel final : public MessageChannel {
 public:
  /// Connects to the other rank, which must do the same. `device` has the form of GroupOptions::rdma_device
  /// (DEVICE:PORT:GID_INDEX). A message has at most `max_bytes`. `store` passes the connection data.
  HeadwayChannel(int rank, std::string const& device, std::size_t max_bytes, comm::Store& store);

  [[nodiscard]] std::span<std::byte> source() override { return source_; }
  void send(std::size_t size_bytes) override;
  void flush() override;
  void wait_for(std::uint64_t count) override;
  [[nodiscard]] std::span<std::byte> slot(std::uint64_t seq) override;

  /// Device, port and GID of the connection.
  [[nodiscard]] VerbsAddress const& address() const { return address_; }

 private:
  /// Counts arrivals, and keeps the first error.
  class Sink final : public comm::ArrivalSink {
   public:
    void arrived(int source, comm::Tag tag) override;
    void on_oob(int /*peer*/, std::string_view /*text*/) override {}
    void lost(int peer, std::string_view reason) override;

    std::uint64_t num_arrived = 0;
    std::string error;
  };
  void poll();

  int peer_;
  std::size_t slot_bytes_;
  std::shared_ptr<std::byte> memory_;  ///< Source memory, registered for the whole run.
  std::span<std::byte> source_;
  VerbsAddress address_;
  std::unique_ptr<comm::Endpoint> endpoint_;
  Sink sink_;
  std::uint64_t num_sent_ = 0;
};

}  // namespace headway::benchmarks
