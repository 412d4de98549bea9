// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/control_socket.hpp"
#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "system/anonymous_mapping.hpp"
#include "transport/doorbell.hpp"
#include "transport/tcp/frame_reader.hpp"
#include "transport/tcp/send_queue.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Transport over stream sockets. A put is a frame: the kernel takes its payload from the caller's memory, and the
/// peer's poll() reads it into its destination. All sockets are non-blocking and watched by one epoll descriptor. The
/// algorithm is explained in endpoint.cpp.
class TcpEndpoint final : public Endpoint {
 public:
  /// Takes over the descriptors of `control_sockets`; a peer without one belongs to another transport. `receive_buffer`
  /// must outlive the endpoint. All ranks have receive buffers of one size.
  TcpEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets, std::span<std::byte> receive_buffer);
  /// Same as above, but owns its receive buffer.
  TcpEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets, std::unique_ptr<AnonymousMapping> memory);
  /// Waits up to a second until the peers' kernels have all data that was sent. Closing earlier could destroy it.
  ~TcpEndpoint() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(links_.size()); }
  [[nodiscard]] PeerTraits traits(int peer) const override;
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return receive_buffer_; }
  Status put(Destination const& destination, std::span<std::byte const> header, std::span<std::byte const> payload,
             Tag tag) override;
  void submit() override;
  [[nodiscard]] std::uint64_t put_count(int peer) const override { return link(peer).num_put; }
  [[nodiscard]] std::uint64_t flushed(int peer) const override { return link(peer).num_flushed; }
  bool poll(ArrivalSink& sink) override;
  Status get(int peer, std::uint64_t address, std::span<std::byte> local) override;
  bool claim(int owner, std::uint64_t offset, std::uint64_t value) override;
  void retract() noexcept override;
  bool open_window(int peer, WindowId window, std::span<std::byte> memory) override;
  void close_window(int peer, WindowId window) override;
  void send_oob(int peer, std::string_view text) noexcept override;
  void arm() override { bell_.arm(); }
  void disarm() override { bell_.disarm(); }
  void sleep(Deadline deadline) override;
  void wake() noexcept override { bell_.ring(); }
  [[nodiscard]] int control_fd() const override { return sockets_.get(); }
  [[nodiscard]] int activity_fd() const override { return activity_.get(); }
  [[nodiscard]] HostShare host_share() const override { return {}; }  // Peers on this host are not told apart.
  [[nodiscard]] bool receives_by_polling() const override { return true; }

  /// Number of peers lost because they sent a bad frame.
  [[nodiscard]] std::uint64_t num_bad_frames() const { return num_bad_frames_; }

 private:
  /// State of the connection to one peer.
  struct Link {
    explicit Link(std::span<std::byte> receive_buffer) : reader(receive_buffer) {}

    base::FileDescriptor socket;  ///< Invalid if the peer is lost or belongs to another transport.
    tcp::SendQueue queue;
    tcp::FrameReader reader;
    std::uint64_t num_put = 0, num_flushed = 0;
    bool is_peer = false;  ///< tcp reaches that rank; stays true when it is lost.
    bool has_unsubmitted = false;
    bool waits_for_room = false;  ///< Its socket was full: poll() goes on sending when there is room.
    std::string loss;  ///< Reason for the loss or for a failed send. The peer counts as lost once all its data is read.
  };

  [[nodiscard]] Link& link(int peer) { return *links_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] Link const& link(int peer) const { return *links_[static_cast<std::size_t>(peer)]; }
  /// @throws UsageError unless `peer` is a rank that tcp reaches.
  [[nodiscard]] Link& checked_link(int peer);
  void take_over(std::vector<ControlSocket> control_sockets);
  void watch_sockets();
  void mark_unsubmitted(int peer);
  /// Sends queued frames until the socket is full or the peer's turn ends. @returns whether the kernel took anything.
  bool flush(int peer);
  /// Records why sending failed and drops what is queued. The loss is reported once all input is read.
  void fail_sending(Link& broken, int error_number);
  /// Adds EPOLLOUT to the events of the peer's socket, or removes it.
  void wait_for_room(int peer, bool waits);
  /// Reads frames until the socket is empty or the peer's turn ends. @returns whether anything was read.
  bool read_from(int peer, ArrivalSink& sink);
  /// Closes the socket and reports the loss to `sink`.
  void lose(int peer, std::string reason, ArrivalSink& sink);
  void start_silence_timer();
  /// Loses peers whose host does not answer. Restarts the timer if data is still unacknowledged.
  void check_silence(ArrivalSink& sink);
  /// Waits up to a second until the peers' kernels have all data.
  void linger() noexcept;

  int rank_;
  std::unique_ptr<AnonymousMapping> own_memory_;
  std::span<std::byte> receive_buffer_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<int> unsubmitted_;
  Doorbell bell_;                            ///< Eventfd that wakes sleep(): rung by wake().
  base::FileDescriptor sockets_, activity_;  ///< epoll descriptors. `activity_` nests `sockets_` and the bell.
  base::FileDescriptor silence_timer_;       ///< Runs while data is unsent or unacknowledged.
  bool timer_runs_ = false;
  std::uint64_t num_bad_frames_ = 0;
};

std::unique_ptr<Endpoint> make_tcp_endpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                                            std::size_t receive_buffer_bytes);

}  // namespace headway::comm
