#pragma once

#include "engines/doorbell.hpp"
#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <memory>
#include <vector>

namespace headway::comm {

/// One endpoint out of two over the same landing memory: peers on this host by one engine, the rest by another.
class CompositeEndpoint final : public Endpoint {
 public:
  /// Both are connected for all ranks of the group and have one landing segment, which `same_host` owns.
  CompositeEndpoint(std::unique_ptr<Endpoint> same_host, std::unique_ptr<Endpoint> remote,
                    std::vector<bool> peer_is_same_host);

  [[nodiscard]] int rank() const override { return same_host_->rank(); }
  [[nodiscard]] int size() const override { return same_host_->size(); }
  [[nodiscard]] PeerTraits traits(int peer) const override { return of(peer).traits(peer); }
  [[nodiscard]] std::span<std::byte> landing() override { return same_host_->landing(); }
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
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override {
    return (owner == rank() ? *same_host_ : of(owner)).claim(owner, offset, value);
  }
  void retract() noexcept override {
    same_host_->retract();
    remote_->retract();
  }
  void expose(int peer, SegmentId segment, std::span<std::byte> memory) override {
    of(peer).expose(peer, segment, memory);
  }
  void withdraw(int peer, SegmentId segment) override { of(peer).withdraw(peer, segment); }
  void send_notice(int peer, std::string_view text) noexcept override { of(peer).send_notice(peer, text); }
  void arm() override;
  void disarm() override;
  void sleep(Deadline deadline) override;
  void wake() noexcept override { bell_.ring(); }
  [[nodiscard]] int lifeline_fd() const override { return lifelines_.get(); }
  [[nodiscard]] int activity_fd() const override { return activity_.get(); }
  [[nodiscard]] HostShare host_share() const override { return same_host_->host_share(); }
  [[nodiscard]] bool lands_by_polling() const override {
    return same_host_->lands_by_polling() || remote_->lands_by_polling();
  }

 private:
  /// A rank out of range goes to an engine all the same, which refuses it.
  [[nodiscard]] Endpoint& of(int peer) const {
    bool const in_range = peer >= 0 && static_cast<std::size_t>(peer) < peer_is_same_host_.size();
    return in_range && peer_is_same_host_[static_cast<std::size_t>(peer)] ? *same_host_ : *remote_;
  }

  // The remote endpoint lands in the other's memory, so it goes first.
  std::unique_ptr<Endpoint> same_host_, remote_;
  std::vector<bool> peer_is_same_host_;
  Doorbell bell_;
  FileDescriptor lifelines_, activity_;  ///< epoll; they nest those of both engines, the second also the bell.
};

}  // namespace headway::comm
