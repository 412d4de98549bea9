// The path of messages.

#include "engines/verbs/endpoint.hpp"

#include "engines/verbs/limits.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace headway::comm {

using verbs::library;

namespace {

/// A caller that spins without ever sleeping must notice a lost peer too.
constexpr unsigned kPollsPerLifelineCheck = 4096;
constexpr int kCompletionsPerCall = 32;
constexpr int kCallsPerPoll = 16;  // One poll may not go on for ever.

}  // namespace

PeerTraits VerbsEndpoint::traits(int peer) const {
  expects(is_peer(peer), "verbs does not reach that rank");
  return {.engine = "verbs"};
}

std::uint64_t VerbsEndpoint::Link::num_flushed() const {
  if (num_in_place == 0 || !loss.empty()) return num_put;
  auto const oldest = std::ranges::find_if(unreclaimed, [](auto const& each) { return each.put_count != 0; });
  return oldest == unreclaimed.end() ? num_put : oldest->put_count - 1;
}

bool VerbsEndpoint::has_room(Link& to, int peer) const {
  if (to.num_requests - to.num_reclaimed >= verbs::kSendRequests - verbs::kReservedRequests) return false;
  if (to.num_put - to.num_taken < verbs::kCredits) return true;
  auto* const word = credit_memory_.bytes().data() + index(peer) * verbs::kCreditWordBytes;
  // Partner of the acquire: the peer's device, which writes after it has posted the receives again.
  to.num_taken = std::atomic_ref(*reinterpret_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  return to.num_put - to.num_taken < verbs::kCredits;
}

Status VerbsEndpoint::put(Destination const& destination, std::span<std::byte const> header,
                          std::span<std::byte const> payload, Tag tag) {
  int const peer = destination.peer;
  expects(is_peer(peer), "a put needs another rank that verbs reaches");
  expects(destination.segment == kLandingSegment, "put: engine verbs has no exposed segments");
  expects(header.size() <= kMaxHeaderBytes, "put: the header is larger than kMaxHeaderBytes");
  expects(destination.offset % 64 == 0, "put: the offset is not a multiple of 64");
  std::size_t const needed = payload.empty() ? header.size() : kHeaderBytes + payload.size();
  expects(destination.offset <= landing_.size() && needed <= landing_.size() - destination.offset,
          "put: the range leaves the landing segment");
  Link& to = links_[index(peer)];
  if (!to.loss.empty()) return lost_status(peer);
  if (!has_room(to, peer)) return Status::would_block();
  bool const is_copied = payload.size() <= verbs::kMaxCopiedBytes;
  std::size_t const lead = header.empty() ? 0 : payload.empty() ? header.size() : kHeaderBytes;
  auto const staged = to.staging.take(lead + (is_copied ? payload.size() : 0));
  if (!staged) return Status::would_block();
  if (lead != 0) {
    std::memset(staged->data(), 0, lead);
    std::memcpy(staged->data(), header.data(), header.size());
  }
  std::uint64_t const offset = destination.offset + (header.empty() && !payload.empty() ? kHeaderBytes : 0);
  std::uint64_t const remote_address = to.remote.landing_address + offset;
  if (!is_copied) return put_in_place(to, peer, remote_address, *staged, payload, tag);

  if (!payload.empty()) std::memcpy(staged->data() + lead, payload.data(), payload.size());
  Request& request = add_put(to, peer, remote_address, tag);
  if (!staged->empty()) add_piece(request, *staged, staging_region_->lkey);
  if (staged->size() <= inline_bytes_) request.work.send_flags |= IBV_SEND_INLINE;
  return {};
}

Status VerbsEndpoint::put_in_place(Link& to, int peer, std::uint64_t remote_address, std::span<std::byte const> lead,
                                   std::span<std::byte const> payload, Tag tag) {
  verbs::MemoryRegion registration(
      library().reg_mr(domain_.get(), const_cast<std::byte*>(payload.data()), payload.size(), 0));
  if (!registration) {
    break_link(to, "a payload of " + std::to_string(payload.size()) +
                       " bytes could not be registered: " + std::strerror(errno) + "; see ulimit -l");
    return lost_status(peer);
  }
  Request& request = add_put(to, peer, remote_address, tag);
  if (!lead.empty()) add_piece(request, lead, staging_region_->lkey);
  add_piece(request, payload, registration->lkey);
  signal(to, request);
  to.unreclaimed.back().put_count = to.num_put;
  to.unreclaimed.back().registration = std::move(registration);
  ++to.num_in_place;
  return {};
}

Status VerbsEndpoint::lost_status(int peer) const {
  return {StatusCode::kPeerLost, "rank " + std::to_string(peer) + " is lost: " + links_[index(peer)].loss};
}

VerbsEndpoint::Request& VerbsEndpoint::add_put(Link& to, int peer, std::uint64_t remote_address, Tag tag) {
  Request& request = add_request(to, peer, remote_address, to.remote.landing_key);
  request.work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.work.imm_data = htonl(tag.packed());
  ++to.num_put;
  return request;
}

VerbsEndpoint::Request& VerbsEndpoint::add_request(Link& to, int peer, std::uint64_t remote_address,
                                                   std::uint32_t remote_key) {
  if (to.num_unposted == 0) unsubmitted_.push_back(peer);
  if (to.num_unposted == to.requests.size()) to.requests.emplace_back();
  Request& request = to.requests[to.num_unposted++];
  request.work.num_sge = 0;
  request.work.send_flags = 0;
  request.work.wr_id = ++to.num_requests;
  request.work.opcode = IBV_WR_RDMA_WRITE;
  request.work.wr.rdma.remote_addr = remote_address;
  request.work.wr.rdma.rkey = remote_key;
  bool const is_due = to.num_requests - to.num_at_signal >= verbs::kRequestsPerSignal ||
                      to.staging.position() - to.staging_at_signal >= verbs::kStagingBytes / 4;
  if (is_due) signal(to, request);
  return request;
}

void VerbsEndpoint::signal(Link& to, Request& request) {
  request.work.send_flags |= IBV_SEND_SIGNALED;
  to.num_at_signal = to.num_requests;
  to.staging_at_signal = to.staging.position();
  to.unreclaimed.push_back(
      {.number = to.num_requests, .staging_position = to.staging.position(), .put_count = 0, .registration = nullptr});
}

void VerbsEndpoint::submit() {
  for (int const peer : unsubmitted_) post(links_[index(peer)], peer);
  unsubmitted_.clear();
}

void VerbsEndpoint::post(Link& to, int peer) {
  if (to.num_unposted == 0) return;
  // Behind the puts, which somebody waits for.
  if (to.num_arrived - to.num_reported >= verbs::kCreditsPerReport) add_credits(to, peer);
  for (std::size_t i = 0; i < to.num_unposted; ++i) {
    ibv_send_wr& work = to.requests[i].work;
    work.sg_list = to.requests[i].pieces.data();
    work.next = i + 1 < to.num_unposted ? &to.requests[i + 1].work : nullptr;
  }
  to.num_unposted = 0;
  ibv_send_wr* failed = nullptr;
  int const error = to.queue_pair ? ibv_post_send(to.queue_pair.get(), &to.requests.front().work, &failed) : 0;
  if (error != 0) break_link(to, std::string("ibv_post_send: ") + std::strerror(error));
}

bool VerbsEndpoint::poll(ArrivalSink& sink) {
  // Of what earlier polls took: in between, a put may have carried the report.
  if (!owed_credits_.empty()) report_credits(verbs::kCreditsPerReport);
  bool found = false;
  if (lifeline_is_ready_.load(std::memory_order_relaxed) || ++num_polls_ % kPollsPerLifelineCheck == 0) [[unlikely]] {
    found = check_lifelines(sink);
  }
  found = take_completions(&sink) || found;
  if (has_broken_links_) [[unlikely]]
    found = check_lifelines(sink) || found;
  if (!owed_credits_.empty()) report_credits(verbs::kUrgentCredits);
  return found;
}

bool VerbsEndpoint::take_completions(ArrivalSink* sink) {
  bool found = false;
  for (int call = 0; call < kCallsPerPoll; ++call) {
    std::array<ibv_wc, kCompletionsPerCall> done;
    int const count = ibv_poll_cq(completions_.get(), kCompletionsPerCall, done.data());
    for (int i = 0; i < count; ++i) {
      ibv_wc const& each = done[static_cast<std::size_t>(i)];
      bool const is_receive = each.wr_id == verbs::kReceiveLabel;
      if (is_receive) ++num_receives_taken_;
      int const peer = peer_of_queue_pair_.find(each.qp_num);
      if (peer < 0) continue;  // Of a connection that is lost.
      Link& link = links_[index(peer)];
      if (each.status != IBV_WC_SUCCESS) {
        break_link(link, library().wc_status_str(each.status));
      } else if (!is_receive) {
        reclaim(link, each.wr_id);
      } else if (each.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
        break_link(link, "it sent something that has no tag");
      } else {
        take_arrival(link, peer, ntohl(each.imm_data), sink);
      }
      found = true;
    }
    if (num_receives_taken_ >= verbs::kReceivesPerPost) post_taken_receives();
    if (count < kCompletionsPerCall) break;
  }
  return found;
}

void VerbsEndpoint::take_arrival(Link& from, int peer, std::uint32_t packed_tag, ArrivalSink* sink) {
  ++from.num_arrived;
  if (from.num_arrived - from.num_reported == verbs::kCreditsPerReport) owed_credits_.push_back(peer);
  if (sink != nullptr) sink->arrived(peer, Tag::unpack(packed_tag));
}

void VerbsEndpoint::post_taken_receives() {
  if (num_receives_taken_ == 0) return;
  if (int const error = post_receives(std::exchange(num_receives_taken_, 0)); error != 0) {
    for (Link& link : links_) break_link(link, std::string("ibv_post_srq_recv: ") + std::strerror(error));
  }
}

void VerbsEndpoint::reclaim(Link& of, std::uint64_t number) {
  while (!of.unreclaimed.empty() && of.unreclaimed.front().number <= number) {
    of.num_reclaimed = of.unreclaimed.front().number;
    of.staging.give_back(of.unreclaimed.front().staging_position);
    if (of.unreclaimed.front().put_count != 0) --of.num_in_place;
    of.unreclaimed.pop_front();
  }
}

VerbsEndpoint::Request* VerbsEndpoint::add_credits(Link& to, int peer) {
  if (to.num_requests - to.num_reclaimed >= verbs::kSendRequests) return nullptr;
  auto const staged = to.staging.take(sizeof to.num_arrived);
  if (!staged) return nullptr;
  post_taken_receives();
  std::memcpy(staged->data(), &to.num_arrived, sizeof to.num_arrived);
  to.num_reported = to.num_arrived;
  Request& request = add_request(to, peer, to.remote.credit_address, to.remote.credit_key);
  add_piece(request, *staged, staging_region_->lkey);
  return &request;
}

void VerbsEndpoint::report_credits(std::uint64_t minimum) {
  std::erase_if(owed_credits_, [this, minimum](int peer) {
    Link& to = links_[index(peer)];
    std::uint64_t const owed = to.num_arrived - to.num_reported;
    if (owed < verbs::kCreditsPerReport || !to.queue_pair) return true;
    if (owed < minimum || add_credits(to, peer) == nullptr) return false;
    post(to, peer);
    std::erase(unsubmitted_, peer);
    return true;
  });
}

Status VerbsEndpoint::get(int peer, std::uint64_t /*address*/, std::span<std::byte> /*local*/) {
  throw UsageError("verbs does not read the memory of rank " + std::to_string(peer));
}

bool VerbsEndpoint::claim(int /*owner*/, std::uint64_t /*offset*/, std::uint64_t /*value*/) {
  throw UsageError("verbs has no words that two ranks can claim");
}

void VerbsEndpoint::expose(int /*peer*/, SegmentId /*segment*/, std::span<std::byte> /*memory*/) {
  throw UsageError("expose: engine verbs has no exposed segments");
}

}  // namespace headway::comm
