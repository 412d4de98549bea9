// SPDX-License-Identifier: Apache-2.0

// Reliable connections of queue pairs (RC). Both sides know each other's QP number, packet number and address from
// the hellos. A queue pair goes through three states: INIT (port and rights), RTR (ready to receive: where packets
// come from), RTS (ready to send: timeouts and retries).

#include "transport/verbs/connection.hpp"

#include "headway/comm/status.hpp"

#include <algorithm>
#include <cerrno>

namespace headway::comm::verbs {

namespace {

// A lost packet is retransmitted after 4.096 us * 2^14 = 67 ms, at most 6 times: a cut wire is detected in half a
// second. (On Soft-RoCE 7 would mean forever.)
constexpr std::uint8_t kTimeout = 14, kRetries = 6;
constexpr std::uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms. Credits ensure that receives never run out.
constexpr std::uint8_t kHopLimit = 64;

std::string rank_text(int peer) { return "rank " + std::to_string(peer); }

void modify(ibv_qp* queue_pair, ibv_qp_attr& attributes, int mask, int peer, char const* state) {
  int const error = library().modify_qp(queue_pair, &attributes, mask);
  if (error != 0) throw SystemError("ibv_modify_qp", error, rank_text(peer) + ", to " + state);
}

ibv_ah_attr path_to(Address const& own, Hello const& peer) {
  ibv_ah_attr path{};
  path.port_num = own.port;
  path.dlid = static_cast<std::uint16_t>(peer.lid);
  bool const other_subnet = own.gid.global.subnet_prefix != peer.gid.global.subnet_prefix;
  if (own.is_ethernet || other_subnet) {
    path.is_global = 1;
    path.grh.dgid = peer.gid;
    path.grh.sgid_index = static_cast<std::uint8_t>(own.gid_index);
    path.grh.hop_limit = kHopLimit;
  }
  return path;
}

}  // namespace

// One completion queue serves sends and receives of all peers, and one receive queue serves all peers, so a poll
// looks at one place whatever the number of ranks.
QueuePair make_queue_pair(ibv_pd* domain, ibv_cq* completions, ibv_srq* receives, QueuePairSizes& sizes) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = completions;
  attributes.recv_cq = completions;
  attributes.srq = receives;
  attributes.cap.max_send_wr = sizes.send_requests;
  attributes.cap.max_send_sge = 2;
  attributes.cap.max_inline_data = sizes.inline_bytes;
  attributes.qp_type = IBV_QPT_RC;
  QueuePair queue_pair(library().create_qp(domain, &attributes));
  if (!queue_pair && sizes.inline_bytes > 0) {  // Some devices grant less, and none says how much.
    attributes.cap.max_inline_data = 0;
    queue_pair.reset(library().create_qp(domain, &attributes));
  }
  if (!queue_pair) throw SystemError("ibv_create_qp", errno, std::to_string(sizes.send_requests) + " requests");
  sizes.inline_bytes = attributes.cap.max_inline_data;
  return queue_pair;
}

void connect_queue_pair(ibv_qp* queue_pair, Address const& own, Hello const& own_hello, Hello const& peer_hello,
                        std::size_t rail, int peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = own.port;
  // Peers may write. They never read, and no atomic operation is used.
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  modify(queue_pair, attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, peer, "INIT");

  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(own_hello.mtu, peer_hello.mtu));
  attributes.dest_qp_num = peer_hello.queue_pairs[rail].qp_num;
  attributes.rq_psn = peer_hello.queue_pairs[rail].packet_number;
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  attributes.ah_attr = path_to(own, peer_hello);
  modify(queue_pair, attributes,
         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER,
         peer, "RTR");

  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRetries;
  attributes.sq_psn = own_hello.queue_pairs[rail].packet_number;
  modify(queue_pair, attributes,
         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
         peer, "RTS");
}

}  // namespace headway::comm::verbs
