// SPDX-License-Identifier: Apache-2.0

// One-way messages in plain verbs, written as perftest does it: inline up to 256 bytes, a completion for every 16th
// request, receives posted in batches. It has no credits and no staging, so it is the lower bound for the transport.

#include "verbs_channel.hpp"

#include <arpa/inet.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace headway::benchmarks {

namespace {

constexpr std::uint32_t kSendRequests = 128;  // The same as in perftest's programs.
constexpr std::uint64_t kRequestsPerSignal = 16;
/// Consumed receives are posted again in batches of this size.
constexpr std::uint32_t kReceivesPerPost = 16;
/// Up to this size a request carries the message itself, so the device need not read memory.
constexpr std::uint32_t kInlineBytes = 256;
/// wr_id of all receives; requests to send have their number, from 1.
constexpr std::uint64_t kReceiveLabel = ~std::uint64_t{0};
/// Slots begin at cache lines.
constexpr std::size_t kAlignment = 64;
/// Longest wait for the other rank's address.
constexpr auto kPatience = std::chrono::seconds(30);

[[noreturn]] void fail(char const* call, int error) {
  throw std::system_error(error, std::generic_category(), std::string("libibverbs: ") + call);
}

/// @throws std::system_error for an errno value other than 0.
void check(int error, char const* call) {
  if (error != 0) fail(call, error);
}

template <typename Pointer>
Pointer check(Pointer pointer, char const* call) {
  if (pointer == nullptr) fail(call, errno);
  return pointer;
}

ibv_context* open_device(std::string const& name) {
  int count = 0;
  ibv_device** const devices = check(ibv_get_device_list(&count), "ibv_get_device_list");
  ibv_context* context = nullptr;
  for (int i = 0; i < count && context == nullptr; ++i) {
    if (name == ibv_get_device_name(devices[i])) context = ibv_open_device(devices[i]);
  }
  ibv_free_device_list(devices);
  return check(context, "ibv_open_device");
}

}  // namespace

VerbsChannel::VerbsChannel(int rank, VerbsAddress const& address, std::size_t max_bytes, comm::Store& store)
    : source_(max_bytes), slot_bytes_((max_bytes + kAlignment - 1) / kAlignment * kAlignment) {
  receive_buffer_.resize(slot_bytes_ * kSlots);
  context_.reset(open_device(address.device));
  make_queues();

  ibv_port_attr port{};
  check(ibv_query_port(context_.get(), address.port, &port), "ibv_query_port");
  ConnectionInfo own{.address = reinterpret_cast<std::uintptr_t>(receive_buffer_.data()),
                     .key = receive_region_->rkey,
                     .queue_pair_number = queue_pair_->qp_num,
                     .gid = {},
                     .lid = port.lid};
  check(ibv_query_gid(context_.get(), address.port, address.gid_index, &own.gid), "ibv_query_gid");
  store.set("bare_end_" + std::to_string(rank), {reinterpret_cast<char const*>(&own), sizeof own});
  auto const other = store.get("bare_end_" + std::to_string(1 - rank), kPatience);
  if (other.size() != sizeof peer_) throw std::runtime_error("libibverbs: a greeting of the wrong size");
  std::memcpy(&peer_, other.data(), sizeof peer_);
  connect(address, own, peer_, port.active_mtu);
}

void VerbsChannel::make_queues() {
  domain_.reset(check(ibv_alloc_pd(context_.get()), "ibv_alloc_pd"));
  int const access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  receive_region_.reset(
      check(ibv_reg_mr(domain_.get(), receive_buffer_.data(), receive_buffer_.size(), access), "ibv_reg_mr"));
  source_region_.reset(check(ibv_reg_mr(domain_.get(), source_.data(), source_.size(), 0), "ibv_reg_mr"));
  int const num_completions = static_cast<int>(kSendRequests + kReceives);
  completions_.reset(check(ibv_create_cq(context_.get(), num_completions, nullptr, nullptr, 0), "ibv_create_cq"));
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_.get();
  attributes.cap = {.max_send_wr = kSendRequests,
                    .max_recv_wr = kReceives,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = kInlineBytes};
  attributes.qp_type = IBV_QPT_RC;
  queue_pair_.reset(check(ibv_create_qp(domain_.get(), &attributes), "ibv_create_qp"));
}

// A reliable connection goes through three states. INIT: it has receives. RTR (ready to receive): it knows the other
// end. RTS (ready to send): it may send, and knows when to repeat what is not acknowledged. `timeout` is an exponent:
// 14 stands for 4.096 us * 2^14 = 67 ms. `min_rnr_timer` is a code of the specification: 12 stands for 0.64 ms.
void VerbsChannel::connect(VerbsAddress const& address, ConnectionInfo const& own, ConnectionInfo const& peer,
                           ibv_mtu mtu) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = address.port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  check(ibv_modify_qp(queue_pair_.get(), &attributes,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        "ibv_modify_qp to INIT");
  post_receives(kReceives);

  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = mtu;
  attributes.dest_qp_num = peer.queue_pair_number;
  attributes.rq_psn = peer.queue_pair_number & 0xffffff;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr.port_num = address.port;
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.grh.dgid = peer.gid;
  attributes.ah_attr.grh.sgid_index = address.gid_index;
  attributes.ah_attr.grh.hop_limit = 64;
  check(ibv_modify_qp(queue_pair_.get(), &attributes,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        "ibv_modify_qp to RTR");

  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = 14;
  attributes.retry_cnt = attributes.rnr_retry = 6;
  attributes.sq_psn = own.queue_pair_number & 0xffffff;
  check(ibv_modify_qp(queue_pair_.get(), &attributes,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC),
        "ibv_modify_qp to RTS");
}

void VerbsChannel::post_receives(std::uint32_t count) {
  std::array<ibv_recv_wr, kReceivesPerPost> receives{};
  for (std::size_t i = 0; i < receives.size(); ++i) {
    receives[i].wr_id = kReceiveLabel;
    receives[i].next = i + 1 < receives.size() ? &receives[i + 1] : nullptr;
  }
  ibv_recv_wr* failed = nullptr;
  for (; count > 0; count -= kReceivesPerPost) {
    check(ibv_post_recv(queue_pair_.get(), receives.data(), &failed), "ibv_post_recv");
  }
}

void VerbsChannel::send(std::size_t size_bytes) {
  while (num_sent_ - num_acknowledged_ >= kSendRequests) poll();
  ibv_sge piece{.addr = reinterpret_cast<std::uintptr_t>(source_.data()),
                .length = static_cast<std::uint32_t>(size_bytes),
                .lkey = source_region_->lkey};
  ibv_send_wr work{};
  work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  // The immediate is the message's number, which the receiver compares with its own count.
  work.imm_data = htonl(static_cast<std::uint32_t>(num_sent_));
  work.wr.rdma.remote_addr = peer_.address + num_sent_ % kSlots * slot_bytes_;
  work.wr.rdma.rkey = peer_.key;
  work.sg_list = &piece;
  work.num_sge = 1;
  work.wr_id = ++num_sent_;
  if (num_sent_ % kRequestsPerSignal == 0) work.send_flags |= IBV_SEND_SIGNALED;
  if (size_bytes <= kInlineBytes) work.send_flags |= IBV_SEND_INLINE;
  ibv_send_wr* failed = nullptr;
  check(ibv_post_send(queue_pair_.get(), &work, &failed), "ibv_post_send");
}

void VerbsChannel::poll() {
  std::array<ibv_wc, 32> done;
  int const count = ibv_poll_cq(completions_.get(), static_cast<int>(done.size()), done.data());
  for (int i = 0; i < count; ++i) {
    ibv_wc const& each = done[static_cast<std::size_t>(i)];
    if (each.status != IBV_WC_SUCCESS) {
      throw std::runtime_error(std::string("libibverbs: ") + ibv_wc_status_str(each.status));
    }
    if (each.wr_id != kReceiveLabel) {
      num_acknowledged_ = each.wr_id;
      continue;
    }
    if (ntohl(each.imm_data) != static_cast<std::uint32_t>(num_arrived_)) {
      throw std::runtime_error("libibverbs: a message is missing");
    }
    ++num_arrived_;
    ++num_receives_taken_;
  }
  for (; num_receives_taken_ >= kReceivesPerPost; num_receives_taken_ -= kReceivesPerPost) {
    post_receives(kReceivesPerPost);
  }
}

// Only every 16th request reports its completion, so the last few are not waited for. That is safe: the benchmark
// overwrites the source only when the other rank has received the message.
void VerbsChannel::flush() {
  while (num_acknowledged_ < num_sent_ / kRequestsPerSignal * kRequestsPerSignal) poll();
}

void VerbsChannel::wait_for(std::uint64_t count) {
  while (num_arrived_ < count) poll();
}

std::span<std::byte> VerbsChannel::slot(std::uint64_t seq) {
  return std::span(receive_buffer_).subspan(seq % kSlots * slot_bytes_, slot_bytes_);
}

}  // namespace headway::benchmarks
