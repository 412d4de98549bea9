// SPDX-License-Identifier: Apache-2.0

// An endpoint whose puts land late and out of order; late_endpoint.hpp has the rules. Endpoint's contract allows both,
// but the shared-memory transport almost never does it, so bugs in the reordering would otherwise stay hidden.

#include "late_endpoint.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm::stress {

LateEndpoint::LateEndpoint(std::unique_ptr<Endpoint> inner, std::size_t credit)
    : inner_(std::move(inner)), credit_(credit), peers_(static_cast<std::size_t>(inner_->size())) {}

Status LateEndpoint::put(Destination const& destination, std::span<std::byte const> header,
                         std::span<std::byte const> payload, Tag tag) {
  Peer& peer = peer_at(destination.peer);
  if (peer.num_under_way >= credit_) return Status::would_block();
  Put put{.destination = destination,
          .header = {},
          .header_bytes = header.size(),
          .payload = payload,
          .tag = tag,
          .number = ++peer.num_put};
  std::copy(header.begin(), header.end(), put.header.begin());
  under_way_.push_back(put);
  peer.landed.push_back(false);
  ++peer.num_under_way;
  return {};
}

bool LateEndpoint::land_one(Random& random) {
  if (num_submitted_ == 0) return false;
  // Half of the time it lands the newest put, so old puts fall far behind younger ones.
  std::size_t const chosen = random.one_in(2) ? num_submitted_ - 1 : random.below(num_submitted_);
  Put const put = under_way_[chosen];
  under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(chosen));
  --num_submitted_;
  Status const status =
      inner_->put(put.destination, std::span(put.header).first(put.header_bytes), put.payload, put.tag);
  expects(status.ok(), "the transport below LateEndpoint must take every put");
  inner_->submit();

  Peer& peer = peer_at(put.destination.peer);
  --peer.num_under_way;
  peer.landed[put.number - peer.num_flushed - 1] = true;
  for (; !peer.landed.empty() && peer.landed.front(); peer.landed.pop_front()) ++peer.num_flushed;
  return true;
}

}  // namespace headway::comm::stress
