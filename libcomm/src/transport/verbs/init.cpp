// SPDX-License-Identifier: Apache-2.0

// RDMA transport, slow path: construction, destruction, sleep, OOB messages and lost peers.
//
// Construction, with n ranks on control sockets that are connected already:
// 1. Register the receive buffer, the mailboxes and the staging memory with the device.
// 2. Divide the receives of one shared queue among the peers. Example: a device with 4,096 receives and 31 peers
//    leaves 132 for each; more than kMaxCredits are never used. A peer may have that many notifications in flight, so
//    the queue never runs dry and no sender is told to wait (RNR).
// 3. Make the queue pairs, exchange their numbers and keys by a hello to each peer, and connect them.
// 4. Tell every peer "ready" and await theirs: a write to a queue pair that is not connected yet would be lost.
//
// All hellos are sent before the first is awaited, so no order of the ranks can block.
//
// Losing a peer: a failed request only marks the link. The loss is reported once the OOB messages that the peer sent
// before are read, since these may tell the reason, and the puts that it made before are taken.

#include "system/available_cores.hpp"
#include "system/epoll.hpp"
#include "transport/connection_setup.hpp"
#include "transport/verbs/endpoint.hpp"
#include "transport/verbs/limits.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <thread>
#include <utility>

namespace headway::comm {

using verbs::library;

namespace {

constexpr char const* kName = "transport verbs";

void make_non_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

verbs::MemoryRegion register_memory(ibv_pd* domain, std::span<std::byte> memory, int access) {
  verbs::MemoryRegion region(library().reg_mr(domain, memory.data(), memory.size(), access));
  if (!region) throw SystemError("ibv_reg_mr", errno, std::to_string(memory.size()) + " bytes; see ulimit -l");
  return region;
}

/// With fewer notifications in flight a peer would mostly wait for credits; then it is better to say so at once.
constexpr std::uint32_t kLeastCredits = 8;

/// First packet number of a connection, 24 bits. Random, so that stray packets of an old connection do not fit.
std::uint32_t random_packet_number() { return std::random_device()() & 0xffffff; }

}  // namespace

VerbsEndpoint::VerbsEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                             std::span<std::byte> receive_buffer, verbs::Settings settings)
    : rank_(rank),
      size_(size),
      settings_(std::move(settings)),
      receive_buffer_(receive_buffer),
      mailbox_memory_(static_cast<std::size_t>(size) * sizeof(verbs::Mailbox)),
      staging_memory_(static_cast<std::size_t>(size) * static_cast<std::size_t>(settings_.num_rails) *
                      verbs::kStagingBytes),
      context_(verbs::open_device(settings_.address.device)),
      domain_(library().alloc_pd(context_.get())),
      registrations_(domain_.get(), settings_.cache_bytes),
      links_(static_cast<std::size_t>(size)),
      owner_of_queue_pair_(static_cast<std::size_t>(size) * static_cast<std::size_t>(settings_.num_rails)),
      control_sockets_(make_epoll(kName)),
      activity_(make_epoll(kName)) {
  if (!domain_) throw SystemError("ibv_alloc_pd", errno, settings_.address.device);
  take_over(std::move(control_sockets));
  make_queues();
  connect_peers();
  watch_descriptors();
}

VerbsEndpoint::VerbsEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                             std::unique_ptr<AnonymousMapping> memory, verbs::Settings settings)
    : VerbsEndpoint(rank, size, std::move(control_sockets), memory->bytes(), std::move(settings)) {
  own_memory_ = std::move(memory);
}

void VerbsEndpoint::take_over(std::vector<ControlSocket> control_sockets) {
  for (std::size_t peer = 0; peer < control_sockets.size() && peer < links_.size(); ++peer) {
    links_[peer].socket = OobSocket(std::move(control_sockets[peer].fd));
    links_[peer].is_peer = links_[peer].socket.valid();
    links_[peer].shares_host = links_[peer].is_peer && control_sockets[peer].same_host;
  }
  expects(control_sockets.size() == links_.size(), "an endpoint needs one control socket for each rank");
  expects(!links_[index(rank_)].is_peer, "a rank has no control socket to itself");
}

void VerbsEndpoint::make_queues() {
  int const written_by_peers = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  receive_region_ = register_memory(domain_.get(), receive_buffer_, written_by_peers);
  mailbox_region_ = register_memory(domain_.get(), mailbox_memory_.bytes(), written_by_peers);
  staging_region_ = register_memory(domain_.get(), staging_memory_.bytes(), 0);

  ibv_device_attr device{};
  if (int const error = library().query_device(context_.get(), &device); error != 0) {
    throw SystemError("ibv_query_device", error, settings_.address.device);
  }
  auto const num_peers = static_cast<std::uint32_t>(std::ranges::count_if(links_, &Link::is_peer));
  auto const most_receives = static_cast<std::uint32_t>(device.max_srq_wr);
  std::uint32_t const credits = std::min(verbs::kMaxCredits, most_receives / std::max(num_peers, 1U));
  if (credits < kLeastCredits) {
    throw SystemError(settings_.address.device + " has " + std::to_string(most_receives) +
                      " receives in a shared queue, too few for " + std::to_string(num_peers) + " peers");
  }
  credits_ = credits;
  // Each peer has `credits` notifications in flight at most, so with this many receives the shared queue never runs
  // dry. The completion queue has room for all receives and all requests at once: an overrun would break every
  // connection.
  std::uint32_t const num_receives = std::max(num_peers, 1U) * credits;
  std::uint32_t const num_completions =
      num_receives + num_peers * static_cast<std::uint32_t>(settings_.num_rails) * verbs::kSendRequests;
  channel_.reset(library().create_comp_channel(context_.get()));
  if (!channel_) throw SystemError("ibv_create_comp_channel", errno, settings_.address.device);
  make_non_blocking(channel_->fd);
  completions_.reset(
      library().create_cq(context_.get(), static_cast<int>(num_completions), nullptr, channel_.get(), 0));
  if (!completions_) throw SystemError("ibv_create_cq", errno, std::to_string(num_completions) + " entries");
  ibv_srq_init_attr attributes{};
  attributes.attr = {.max_wr = num_receives, .max_sge = 1, .srq_limit = 0};
  receives_.reset(library().create_srq(domain_.get(), &attributes));
  if (!receives_) throw SystemError("ibv_create_srq", errno, std::to_string(num_receives) + " receives");
  if (int const error = post_receives(num_receives); error != 0) {
    throw SystemError("ibv_post_srq_recv", error, settings_.address.device);
  }
}

// The receives have no memory: a write with immediate brings its bytes to where the sender says, and takes from the
// receiver only the entry that reports it.
int VerbsEndpoint::post_receives(std::size_t count) {
  std::array<ibv_recv_wr, 64> receives;
  while (count > 0) {
    std::size_t const batch = std::min(count, receives.size());
    for (std::size_t i = 0; i < batch; ++i) {
      receives[i] = {.wr_id = verbs::kReceiveLabel,
                     .next = i + 1 < batch ? &receives[i + 1] : nullptr,
                     .sg_list = nullptr,
                     .num_sge = 0};
    }
    ibv_recv_wr* failed = nullptr;
    int const error = ibv_post_srq_recv(receives_.get(), receives.data(), &failed);
    if (error != 0) return error;
    count -= batch;
  }
  return 0;
}

void VerbsEndpoint::make_rails(int peer, verbs::Hello& hello) {
  auto const num_rails = static_cast<std::size_t>(settings_.num_rails);
  auto const mailbox_address = reinterpret_cast<std::uintptr_t>(&mailbox_of(peer));
  hello = {.receive_buffer = {reinterpret_cast<std::uintptr_t>(receive_buffer_.data()), receive_region_->rkey},
           .mailbox = {mailbox_address, mailbox_region_->rkey},
           .credits = static_cast<std::uint32_t>(credits_),
           .mtu = static_cast<std::uint32_t>(settings_.address.mtu),
           .max_message_bytes = settings_.address.max_message_bytes,
           .lid = settings_.address.lid,
           .gid = settings_.address.gid,
           .cores = own_cores(),
           .queue_pairs = {}};
  for (std::size_t rail = 0; rail < num_rails; ++rail) {
    verbs::QueuePairSizes sizes{.send_requests = verbs::kSendRequests, .inline_bytes = verbs::kInlineBytes};
    auto queue_pair = verbs::make_queue_pair(domain_.get(), completions_.get(), receives_.get(), sizes);
    inline_bytes_ = sizes.inline_bytes;
    hello.queue_pairs[rail] = {.qp_num = queue_pair->qp_num, .packet_number = random_packet_number()};
    owner_of_queue_pair_.add(queue_pair->qp_num, {.peer = peer, .rail = static_cast<std::uint32_t>(rail)});
    std::size_t const begin = (index(peer) * num_rails + rail) * verbs::kStagingBytes;
    links_[index(peer)].rails.emplace_back(std::move(queue_pair),
                                           staging_memory_.bytes().subspan(begin, verbs::kStagingBytes));
  }
}

void VerbsEndpoint::connect_peers() {
  std::vector<verbs::Hello> hellos(links_.size());
  for (int peer = 0; peer < size_; ++peer) {
    if (!links_[index(peer)].is_peer) continue;
    make_rails(peer, hellos[index(peer)]);
    send_all(links_[index(peer)].socket.fd(), std::as_bytes(std::span(&hellos[index(peer)], 1)), peer,
             settings_.patience);
  }
  for (int peer = 0; peer < size_; ++peer) {
    Link& link = links_[index(peer)];
    if (!link.is_peer) continue;
    receive_all(link.socket.fd(), std::as_writable_bytes(std::span(&link.remote, 1)), peer, settings_.patience);
    for (std::size_t rail = 0; rail < link.rails.size(); ++rail) {
      verbs::connect_queue_pair(link.rails[rail].queue_pair(), settings_.address, hellos[index(peer)], link.remote,
                                rail, peer);
    }
  }
  // No rank may write to a queue pair that is not ready, so each rank announces readiness to all.
  std::array<std::byte, 1> ready{std::byte{1}};
  for (int peer = 0; peer < size_; ++peer) {
    if (links_[index(peer)].is_peer) send_all(links_[index(peer)].socket.fd(), ready, peer, settings_.patience);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (links_[index(peer)].is_peer) receive_all(links_[index(peer)].socket.fd(), ready, peer, settings_.patience);
  }
}

void VerbsEndpoint::watch_descriptors() {
  for (Link const& link : links_) {
    if (!link.is_peer) continue;
    make_non_blocking(link.socket.fd());
    watch(control_sockets_, link.socket.fd(), kName);
  }
  for (int const fd : {control_sockets_.get(), channel_->fd, bell_.fd()}) watch(activity_, fd, kName);
}

VerbsEndpoint::~VerbsEndpoint() { linger(); }

// A put is in transfer until the peer's device has acknowledged it. Destroying the queue pair earlier would lose it.
void VerbsEndpoint::linger() noexcept {
  try {
    if (may_break_) return;
    for (int peer = 0; peer < size_; ++peer) {
      Link& to = links_[index(peer)];
      if (!to.loss.empty()) continue;
      for (auto& rail : to.rails) {
        if (!rail.is_out())
          rail.signal(add_write(to, peer, rail, to.remote.receive_buffer));  // An empty write, for its completion.
      }
    }
    submit();
    auto const is_out = [](Link const& link) {
      return !link.loss.empty() || link.is_out() || link.socket.is_hung_up();
    };
    Deadline const deadline = Clock::now() + std::chrono::seconds(1);
    while (!std::ranges::all_of(links_, is_out) && Clock::now() < deadline) {
      if (!take_completions(nullptr)) std::this_thread::yield();
    }
  } catch (std::exception const&) {
    // Best effort: the destructor must not throw.
  }
}

HostShare VerbsEndpoint::host_share() const {
  HostShare share;
  cpu_set_t cores = own_cores();
  for (Link const& link : links_) {
    if (!link.shares_host) continue;
    ++share.num_ranks;
    CPU_OR(&cores, &cores, &link.remote.cores);
  }
  share.num_cores = num_usable(cores);
  return share;
}

void VerbsEndpoint::send_oob(int peer, std::string_view text) noexcept {
  if (peer < 0 || peer >= size_) return;
  Link const& link = links_[index(peer)];
  if (link.is_peer && !link.is_lost) link.socket.send(text);
}

// The device rings the completion channel once for each request to be notified, for whatever completes after it. The
// caller must poll once more afterwards: what completed before the request rings nothing.
void VerbsEndpoint::arm() {
  bell_.arm();
  ibv_req_notify_cq(completions_.get(), 0);
}

void VerbsEndpoint::sleep(Deadline deadline) {
  std::array<epoll_event, 3> events;
  int const count = ::epoll_wait(activity_.get(), events.data(), events.size(), milliseconds_until(deadline));
  for (int i = 0; i < count; ++i) {
    int const fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == control_sockets_.get()) control_is_ready_.store(true);
    if (fd == bell_.fd()) bell_.drain();
    if (fd != channel_->fd) continue;
    ibv_cq* of = nullptr;
    void* unused = nullptr;
    while (library().get_cq_event(channel_.get(), &of, &unused) == 0) library().ack_cq_events(of, 1);
    // A request yields one event. The caller's poll() finds what arrived before the new request took effect.
    if (bell_.is_armed()) ibv_req_notify_cq(completions_.get(), 0);
  }
}

void VerbsEndpoint::break_link(Link& link, std::string reason, Clock::duration patience) {
  if (!link.is_peer || !link.loss.empty()) return;
  link.loss = std::move(reason);
  link.loss_is_due = Clock::now() + patience;
  has_broken_links_ = true;
}

bool VerbsEndpoint::check_control_sockets(ArrivalSink& sink) {
  control_is_ready_.store(false);
  if (!std::exchange(has_broken_links_, false) && !is_readable(control_sockets_.get())) return false;
  // Deliver all OOB messages before any loss: a peer that left because another rank was lost says so in an OOB message.
  auto const now = Clock::now();
  std::vector<int> leaving;
  for (int peer = 0; peer < size_; ++peer) {
    Link& link = links_[index(peer)];
    if (!link.is_peer || link.is_lost) continue;
    bool const is_open = link.socket.receive(peer, sink);
    bool const is_due = !link.loss.empty() && link.loss_is_due <= now;
    if (!is_open || is_due) leaving.push_back(peer);
    has_broken_links_ = has_broken_links_ || (is_open && !link.loss.empty() && !is_due);
  }
  if (!leaving.empty()) take_completions(&sink);  // Puts that a peer made before it left are delivered before its loss.
  for (int const peer : leaving) {
    std::string const& loss = links_[index(peer)].loss;
    report_loss(peer, loss.empty() ? "it closed the connection" : loss, sink);
  }
  return true;
}

void VerbsEndpoint::report_loss(int peer, std::string const& reason, ArrivalSink& sink) {
  Link& link = links_[index(peer)];
  link.is_lost = true;
  if (link.loss.empty()) link.loss = reason;
  ::epoll_ctl(control_sockets_.get(), EPOLL_CTL_DEL, link.socket.fd(), nullptr);
  for (auto const& rail : link.rails) owner_of_queue_pair_.remove(rail.queue_pair()->qp_num);
  link.rails.clear();  // From here on no device reads or writes for this peer.
  std::erase(unsubmitted_, peer);
  sink.lost(peer, reason);
}

std::unique_ptr<Endpoint> make_verbs_endpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                                              std::size_t receive_buffer_bytes, verbs::Settings settings) {
  return std::make_unique<VerbsEndpoint>(rank, size, std::move(control_sockets),
                                         std::make_unique<AnonymousMapping>(receive_buffer_bytes), std::move(settings));
}

}  // namespace headway::comm
