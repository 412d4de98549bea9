// SPDX-License-Identifier: Apache-2.0

// Reuse of operations: allocating an operation with its two lists of blocks would be a noticeable part of a small
// exchange.
//
// The pool is a circle of operations in the order of their last use. A call takes the oldest if nobody else holds it.
// Example: three operations A, B, C in the circle, A the oldest. If A is free it is used again, and B is the oldest.
// If the caller still holds A, a new operation D is put before it, and A stays the oldest: [D, A, B, C]. Above 64
// operations D replaces A in the circle, and A dies with its last user.

#include "channel/all_to_all_operation.hpp"

#include <utility>

namespace headway::comm {

namespace {

constexpr std::size_t kMaxPooled = 64;  ///< Completed operations kept for reuse.

}  // namespace

void AllToAllOperation::begin(AllToAllArgs const& args, std::uint64_t seq, std::chrono::milliseconds timeout,
                              bool blocking) {
  reset(Verb::kAllToAll, seq, timeout);
  sends.assign(args.sends.begin(), args.sends.end());
  receives.assign(args.receives.begin(), args.receives.end());
  received_bytes = args.received_bytes;
  data_type = args.data_type;
  channel = args.channel;
  next_to_post = 0;
  unflushed.clear();
  open_rts.clear();
  lacks_only_rts_at = Clock::time_point();
  is_blocking = blocking;
  last_arrival = -1;
  trace = {};
}

std::shared_ptr<AllToAllOperation> AllToAllOperationPool::take() {
  // Operations mostly end in the order of their starts. If the oldest is in use, the others probably are too. Searching
  // on would make many starts in a row quadratic.
  if (pool_.empty() || pool_[oldest_].use_count() != 1) {
    auto fresh = std::make_shared<AllToAllOperation>();
    if (pool_.size() < kMaxPooled) {
      pool_.insert(pool_.begin() + static_cast<std::ptrdiff_t>(oldest_), std::move(fresh));
    } else {
      pool_[oldest_] = std::move(fresh);  // The replaced object now belongs to its user alone.
    }
  }
  auto const& operation = pool_[oldest_];
  oldest_ = oldest_ + 1 < pool_.size() ? oldest_ + 1 : 0;
  return operation;
}

}  // namespace headway::comm
