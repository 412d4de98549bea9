// SPDX-License-Identifier: Apache-2.0

// RDMA transport, data path: one-sided writes with the tag as immediate, and receiver-granted credits.
//
// Idea: a put is one RDMA WRITE_WITH_IMM into the peer's receive buffer. Header and payload land 64 bytes apart; the
// completion at the receiver carries the tag. Payloads up to 64 KiB are copied into registered staging memory; larger
// ones, and from 16 KiB on those in memory that stays registered, are read in place, and flushed() waits for them.
// Each notification consumes one receive of a shared receive queue. A peer may have `credits` notifications in flight.
// The receiver posts consumed receives again and only then writes its count into the sender's mailbox.
//
// Example (256 credits): A has put 256 times, and its mailbox says that B consumed 0, so put() returns kWouldBlock.
// Once B owes 128, the report goes out with B's next put to A, or in its next poll; at 192 it goes out at once. A reads
// 128 in its mailbox and may put again.
//
// Invariants:
// - Receives are posted before the credit for them is written, so the shared queue never runs dry.
// - Credits, windows and notifications without bytes use the first rail: on one queue pair they are not overtaken.
// - A completion covers all earlier requests of its queue pair. Requests are signalled every 16 requests, every quarter
//   of the staging memory, and if they read a payload in place; failures always complete.
// - After retract() no registration is left, so no device can touch the caller's memory. After close_window()
//   that holds except for memory of allocate(), which may stay registered.
// - OOB messages of a peer are reported before its loss.
// Complexity: one request per put, one ibv_post_send() per rail and submit(); 512 KiB of staging memory per rail.
// Source: InfiniBand specification volume 1, reliable connections; measurements in docs/design/verbs_transport.md.

#include "transport/verbs/endpoint.hpp"

#include "system/small_copy.hpp"
#include "transport/verbs/limits.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

namespace headway::comm {

using verbs::library;

namespace {

/// A caller that spins and never sleeps must detect a lost peer too.
constexpr unsigned kPollsPerControlCheck = 4096;
constexpr int kCallsPerPoll = 16;  // Bounds the time of one poll().
constexpr std::chrono::seconds kKeepAlivePeriod{1};
/// Below this size, registering an output for one operation costs about as much as copying its fragments.
constexpr std::size_t kMinWindowBytes = std::size_t{256} << 10;
/// Piece size of large blocks: several queue pairs share a block, and one piece is registered while the previous one is
/// in transfer.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
/// Time in which a peer may tell by an OOB message why it ended a connection, e.g. because its group failed.
constexpr std::chrono::milliseconds kOobTime{500};

}  // namespace

PeerTraits VerbsEndpoint::traits(int peer) const {
  expects(is_peer(peer), "verbs does not reach that rank");
  std::uint64_t const own_limit = settings_.address.max_message_bytes;
  std::size_t const limit = std::min(own_limit, links_[index(peer)].remote.max_message_bytes) - kHeaderBytes;
  return {.transport = "verbs",
          .can_put_to_window = true,
          .max_put_bytes = limit,
          .piece_bytes = std::min(kPieceBytes, limit),
          .min_window_bytes = kMinWindowBytes};
}

std::uint64_t VerbsEndpoint::flushed(int peer) const {
  Link const& to = links_[index(peer)];
  std::uint64_t flushed = to.num_put;
  if (!to.loss.empty()) return flushed;
  // Puts complete in order on each rail, not across rails: everything before the oldest unfinished one has been
  // flushed.
  for (auto const& rail : to.rails) {
    if (auto const oldest = rail.oldest_in_place()) flushed = std::min(flushed, *oldest - 1);
  }
  return flushed;
}

bool VerbsEndpoint::has_credit(Link& to, int peer) {
  // Usually the last known count is enough, and the mailbox, which the device writes, need not be read.
  if (to.num_put - to.num_taken < to.remote.credits) return true;
  // Pairs with the write of the peer's device, which follows the posting of the receives.
  to.num_taken = std::atomic_ref(mailbox_of(peer).num_taken).load(std::memory_order_acquire);
  return to.num_put - to.num_taken < to.remote.credits;
}

verbs::RemoteMemory VerbsEndpoint::target_of(Destination const& destination, std::size_t header_bytes,
                                             std::size_t payload_bytes) {
  if (destination.window == kReceiveBuffer) {
    expects(destination.offset % 64 == 0, "put: the offset is not a multiple of 64");
    std::size_t const needed = payload_bytes == 0 ? header_bytes : kHeaderBytes + payload_bytes;
    expects(destination.offset <= receive_buffer_.size() && needed <= receive_buffer_.size() - destination.offset,
            "put: the range leaves the receive buffer");
    // Without a header the gap before the payload is not sent, so the write begins at the payload.
    std::uint64_t const skipped = header_bytes == 0 && payload_bytes != 0 ? kHeaderBytes : 0;
    auto const& receive_buffer = links_[index(destination.peer)].remote.receive_buffer;
    return {.address = receive_buffer.address + destination.offset + skipped, .key = receive_buffer.key};
  }
  auto const& window = mailbox_of(destination.peer).windows[destination.window % verbs::kWindows];
  expects(window.id == destination.window, "put: the peer has not opened that window");
  expects(destination.offset <= window.size && payload_bytes <= window.size - destination.offset,
          "put: the range leaves the window");
  return {.address = window.address + destination.offset, .key = window.key};
}

Status VerbsEndpoint::put(Destination const& destination, std::span<std::byte const> header,
                          std::span<std::byte const> payload, Tag tag) {
  int const peer = destination.peer;
  expects(is_peer(peer), "a put needs another rank that verbs reaches");
  expects(header.size() <= kMaxHeaderBytes, "put: the header is larger than kMaxHeaderBytes");
  bool const has_header = !header.empty() && destination.window == kReceiveBuffer;
  Link& to = links_[index(peer)];
  if (!to.loss.empty()) return lost_status(peer);
  auto const target = target_of(destination, has_header ? header.size() : 0, payload.size());
  if (!has_credit(to, peer)) return Status::would_block();
  verbs::Rail& rail = take_rail(to, has_header || !payload.empty());
  if (!rail.has_room()) return Status::would_block();
  // Copy, or read in place? Small payloads are copied to staging memory. Memory of a GPU cannot be copied by this
  // thread.
  bool const may_be_copied = payload.size() <= verbs::kMaxCopiedBytes && !registrations_.is_on_gpu(payload);
  verbs::Registration registration;  // Null if the payload is copied.
  if (!may_be_copied || payload.size() >= verbs::kMinInPlaceBytes) {
    expects(payload.size() <= traits(peer).max_put_bytes, "put: the payload is larger than max_put_bytes");
    registration = may_be_copied ? registrations_.find_kept(payload) : registrations_.find_or_register(payload, 0);
    if (!registration && !may_be_copied) return refuse_payload(to, peer, payload);
  }
  // The receiver's layout puts the payload 64 bytes behind the header's begin. With both, the gap is sent too.
  std::size_t const lead = !has_header ? 0 : payload.empty() ? header.size() : kHeaderBytes;
  auto const staged = rail.stage(lead + (registration ? 0 : payload.size()));
  if (!staged) return Status::would_block();
  if (lead != 0) {
    std::memset(staged->data(), 0, lead);
    copy_bytes(staged->data(), header.data(), header.size());
  }
  if (!registration) copy_bytes(staged->data() + lead, payload.data(), payload.size());
  verbs::Request& request = add_put(to, peer, rail, target, tag);
  if (!staged->empty()) request.add_piece(*staged, staging_region_->lkey);
  if (registration) {
    request.add_piece(payload, registration->lkey);
    rail.signal_in_place(request, to.num_put, std::move(registration));
  } else if (staged->size() <= inline_bytes_) {
    request.work.send_flags |= IBV_SEND_INLINE;
  }
  return {};
}

Status VerbsEndpoint::refuse_payload(Link& to, int peer, std::span<std::byte const> payload) {
  break_link(to, "a payload of " + std::to_string(payload.size()) +
                     " bytes could not be registered: " + registrations_.refusal());
  return lost_status(peer);
}

Status VerbsEndpoint::lost_status(int peer) const {
  return {StatusCode::kPeerLost, "rank " + std::to_string(peer) + " is lost: " + links_[index(peer)].loss};
}

verbs::Request& VerbsEndpoint::add_put(Link& to, int peer, verbs::Rail& rail, verbs::RemoteMemory const& target,
                                       Tag tag) {
  verbs::Request& request = add_write(to, peer, rail, target);
  request.work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  // The immediate travels in network byte order by definition.
  request.work.imm_data = htonl(tag.packed());
  ++to.num_put;
  return request;
}

void VerbsEndpoint::submit() {
  for (int const peer : unsubmitted_) post(links_[index(peer)], peer);
  unsubmitted_.clear();
}

void VerbsEndpoint::post(Link& to, int peer) {
  // Credits go after the puts, which somebody waits for.
  if (to.num_arrived - to.num_reported >= credits_ / 2) add_credits(to, peer);
  to.is_unsubmitted = false;
  for (auto& rail : to.rails) {
    if (int const error = rail.post(); error != 0)
      break_link(to, std::string("ibv_post_send: ") + std::strerror(error));
  }
}

// Almost all polls of a waiting thread find nothing, so that case returns first.
bool VerbsEndpoint::poll(ArrivalSink& sink) {
  ++num_polls_;
  Completions done;
  int const count = ibv_poll_cq(completions_.get(), kCompletionsPerCall, done.data());
  // Done only in idle polls. add_credits() posts receives too, so no peer gets a credit for a receive that is not
  // posted.
  if (count == 0 && num_receives_taken_ >= verbs::kReceivesPerPost) [[unlikely]]
    post_taken_receives();
  if (count == 0 && owed_credits_.empty() && !wants_control_check()) [[likely]]
    return false;
  // Credits owed since earlier polls. A put may have carried the report in between.
  if (!owed_credits_.empty()) report_credits(credits_ / 2);
  bool found = take(done, count, &sink);
  // A full batch: there are probably more.
  if (count == kCompletionsPerCall) take_completions(&sink);
  if (wants_control_check()) [[unlikely]]
    found = check_control_sockets(sink) || found;
  if (!owed_credits_.empty()) report_credits(credits_ * 3 / 4);  // Before the caller can put.
  return found;
}

bool VerbsEndpoint::wants_control_check() const {
  return has_broken_links_ || control_is_ready_.load(std::memory_order_relaxed) ||
         num_polls_ % kPollsPerControlCheck == 0;
}

bool VerbsEndpoint::take_completions(ArrivalSink* sink) {
  bool found = false;
  for (int call = 0; call < kCallsPerPoll; ++call) {
    Completions done;
    int const count = ibv_poll_cq(completions_.get(), kCompletionsPerCall, done.data());
    found = take(done, count, sink) || found;
    if (count < kCompletionsPerCall) break;
  }
  return found;
}

bool VerbsEndpoint::take(Completions const& done, int count, ArrivalSink* sink) {
  for (int i = 0; i < count; ++i) {
    ibv_wc const& each = done[static_cast<std::size_t>(i)];
    bool const is_receive = each.wr_id == verbs::kReceiveLabel;
    if (is_receive) ++num_receives_taken_;
    auto const [peer, rail] = owner_of_queue_pair_.find(each.qp_num);
    if (peer < 0) continue;  // The completion belongs to a lost connection.
    Link& link = links_[index(peer)];
    if (each.status != IBV_WC_SUCCESS) {
      connection_failed(link, each.status);
    } else if (!is_receive) {
      link.rails[rail].reclaim(each.wr_id);
    } else if (each.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
      break_link(link, "it sent something that has no tag");
    } else {
      take_arrival(link, peer, ntohl(each.imm_data), sink);
    }
  }
  return count > 0;
}

void VerbsEndpoint::connection_failed(Link& link, ibv_wc_status status) {
  if (may_break_)
    return;  // retract() took memory from the device, so failures are expected. A lost peer shows on its socket.
  bool const is_silent = status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR;
  break_link(link, library().wc_status_str(status), is_silent ? Clock::duration() : kOobTime);
}

void VerbsEndpoint::take_arrival(Link& from, int peer, std::uint32_t packed_tag, ArrivalSink* sink) {
  ++from.num_arrived;
  if (from.num_arrived - from.num_reported == credits_ / 2) owed_credits_.push_back(peer);
  if (sink != nullptr) sink->arrived(peer, Tag::unpack(packed_tag));
}

void VerbsEndpoint::post_taken_receives() {
  if (num_receives_taken_ == 0) return;
  if (int const error = post_receives(std::exchange(num_receives_taken_, 0)); error != 0) {
    for (Link& link : links_) break_link(link, std::string("ibv_post_srq_recv: ") + std::strerror(error));
  }
}

verbs::Request* VerbsEndpoint::add_mail(Link& to, int peer, std::size_t offset, std::span<std::byte const> bytes) {
  verbs::Rail& rail = to.rails.front();
  if (!rail.has_reserve()) return nullptr;
  auto const staged = rail.stage(bytes.size());
  if (!staged) return nullptr;
  std::memcpy(staged->data(), bytes.data(), bytes.size());
  auto const& mailbox = to.remote.mailbox;
  verbs::Request& request = add_write(to, peer, rail, {.address = mailbox.address + offset, .key = mailbox.key});
  request.add_piece(*staged, staging_region_->lkey);
  return &request;
}

verbs::Request* VerbsEndpoint::add_credits(Link& to, int peer) {
  post_taken_receives();
  auto* const request =
      add_mail(to, peer, offsetof(verbs::Mailbox, num_taken), std::as_bytes(std::span(&to.num_arrived, 1)));
  if (request != nullptr) to.num_reported = to.num_arrived;
  return request;
}

void VerbsEndpoint::report_credits(std::uint64_t minimum) {
  std::erase_if(owed_credits_, [this, minimum](int peer) {
    Link& to = links_[index(peer)];
    std::uint64_t const owed = to.num_arrived - to.num_reported;
    if (owed < credits_ / 2 || to.rails.empty()) return true;
    if (owed < minimum || add_credits(to, peer) == nullptr) return false;
    post(to, peer);
    std::erase(unsubmitted_, peer);
    return true;
  });
}

void VerbsEndpoint::keep_alive() {
  auto const now = Clock::now();
  if (now < next_keep_alive_ || may_break_) return;
  next_keep_alive_ = now + kKeepAlivePeriod;
  for (int peer = 0; peer < size_; ++peer) {
    Link& to = links_[index(peer)];
    if (to.rails.empty() || !to.loss.empty() || to.rails.front().expects_completion()) continue;
    if (verbs::Request* const request = add_credits(to, peer)) to.rails.front().signal(*request);
  }
  submit();
}

bool VerbsEndpoint::open_window(int peer, WindowId id, std::span<std::byte> memory) {
  expects(is_peer(peer), "open_window: verbs does not reach that rank");
  Link& to = links_[index(peer)];
  std::size_t const at = id % verbs::kWindows;
  OwnWindow& own = to.own_windows[at];
  if (!to.loss.empty() || own.registration || !to.rails.front().has_room()) return false;
  auto registration = registrations_.find_or_register(memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!registration) return false;
  verbs::Window const window{.address = reinterpret_cast<std::uintptr_t>(memory.data()),
                             .size = memory.size(),
                             .id = id,
                             .key = registration->rkey};
  std::size_t const offset = offsetof(verbs::Mailbox, windows) + at * sizeof window;
  if (add_mail(to, peer, offset, std::as_bytes(std::span(&window, 1))) == nullptr) return false;
  own = {.id = id, .registration = std::move(registration)};
  return true;
}

void VerbsEndpoint::close_window(int peer, WindowId id) {
  expects(is_peer(peer), "close_window: verbs does not reach that rank");
  OwnWindow& own = links_[index(peer)].own_windows[id % verbs::kWindows];
  if (own.id == id) own = {};
}

// Deregistration ends every transfer between the device and the caller's memory.
void VerbsEndpoint::retract() noexcept {
  registrations_.clear();
  for (Link& link : links_) {
    auto const is_open = [](OwnWindow const& each) { return each.registration != nullptr; };
    may_break_ = may_break_ || std::ranges::any_of(link.own_windows, is_open);
    for (auto& rail : link.rails) {
      may_break_ = may_break_ || rail.oldest_in_place().has_value();
      rail.let_go_of_payloads();
    }
    link.own_windows.fill({});
  }
}

Status VerbsEndpoint::get(int peer, std::uint64_t /*address*/, std::span<std::byte> /*local*/) {
  throw UsageError("verbs does not read the memory of rank " + std::to_string(peer));
}

bool VerbsEndpoint::claim(int /*owner*/, std::uint64_t /*offset*/, std::uint64_t /*value*/) {
  throw UsageError("verbs has no words that two ranks can claim");
}

}  // namespace headway::comm
