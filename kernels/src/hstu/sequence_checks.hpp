// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/host_device.hpp"
#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

// Checks of sequences, shared by the CPU and devices so that both give the same error messages. `refuse(format,
// values...)` takes a printf format with values of long long and strings, and does not return.
//
// Every condition of a sequence is computed before the first branch. On a device, all loads of a sequence then overlap:
// the check takes one latency of memory instead of one per condition.

/// Offsets must begin at 0. check_sequence() of sequence 0 does this too.
template <class Refuse>
HEADWAY_HOST_DEVICE void check_first_offsets(HstuSequences const& all, Refuse const& refuse) {
  long long const query = all.query_offsets[0], key = all.key_offsets[0];
  if (query != 0) refuse("HSTU attention: query_offsets begin at %lld and must at 0", query);
  if (key != 0) refuse("HSTU attention: key_offsets begin at %lld and must at 0", key);
}

/// Rows of one sequence by its offsets (of queries or of keys), and the errors among them.
struct CheckedOffsets {
  long long begin, end, sequence, num_rows, most;
  bool descend, are_too_long, end_behind_rows;

  /// @param num_allocated allocated rows
  /// @param announced upper bound on the length of a sequence
  HEADWAY_HOST_DEVICE CheckedOffsets(std::int64_t const* offsets, std::int64_t b, std::int64_t num_allocated,
                                     std::int64_t announced)
      : begin(offsets[b]),
        end(offsets[b + 1]),
        sequence(b),
        num_rows(num_allocated),
        most(announced),
        descend(end < begin),
        are_too_long(end - begin > announced),
        end_behind_rows(end > num_allocated) {}

  [[nodiscard]] HEADWAY_HOST_DEVICE long long count() const { return end - begin; }
  [[nodiscard]] HEADWAY_HOST_DEVICE bool are_wrong() const { return descend | are_too_long | end_behind_rows; }

  /// Refuses the first error, if there is one.
  template <class Refuse>
  HEADWAY_HOST_DEVICE void check(char const* name, Refuse const& refuse) const {
    if (descend)
      refuse("HSTU attention: %s_offsets descend from %lld to %lld in sequence %lld", name, begin, end, sequence);
    if (are_too_long) {
      refuse("HSTU attention: sequence %lld has %lld tokens by %s_offsets, and at most %lld were announced", sequence,
             count(), name, most);
    }
    if (end_behind_rows) {
      refuse("HSTU attention: %s_offsets end at %lld in sequence %lld, but there are %lld tokens", name, end, sequence,
             num_rows);
    }
  }
};

/// Checks sequence b: offsets, then that counts of queries, contextual tokens and targets fit its keys.
template <class Refuse>
HEADWAY_HOST_DEVICE void check_sequence(HstuSequences const& all, std::int64_t b, Refuse const& refuse) {
  CheckedOffsets const query(all.query_offsets, b, all.num_queries, all.max_queries);
  CheckedOffsets const key(all.key_offsets, b, all.num_keys, all.max_keys);
  long long const contextual = all.num_contextual == nullptr ? 0 : all.num_contextual[b];
  long long const targets = all.num_targets == nullptr ? 0 : all.num_targets[b];
  long long const sequence = b, queries = query.count(), keys = key.count();
  bool const has_too_few_keys = queries > keys, is_negative = (contextual < 0) | (targets < 0);
  bool const has_too_many = contextual + targets > keys, begins_late = b == 0 && ((query.begin | key.begin) != 0);
  if (!(begins_late | query.are_wrong() | key.are_wrong() | has_too_few_keys | is_negative | has_too_many)) return;
  if (b == 0) check_first_offsets(all, refuse);
  query.check("query", refuse);
  key.check("key", refuse);
  if (has_too_few_keys)
    refuse("HSTU attention: sequence %lld has %lld queries, more than its %lld keys", sequence, queries, keys);
  if (contextual < 0) refuse("HSTU attention: sequence %lld has %lld contextual tokens", sequence, contextual);
  if (targets < 0) refuse("HSTU attention: sequence %lld has %lld targets", sequence, targets);
  refuse("HSTU attention: sequence %lld has %lld contextual tokens and %lld targets, more than its %lld keys", sequence,
         contextual, targets, keys);
}

/// Bound i (from 1 on) must not be less than the bound before.
template <class Refuse>
HEADWAY_HOST_DEVICE void check_time_bound(float const* bounds, std::int64_t i, Refuse const& refuse) {
  bool const ascends = bounds[i - 1] <= bounds[i];
  if (!ascends) {
    refuse("HSTU attention: time_bounds descend from %g to %g at %lld", static_cast<double>(bounds[i - 1]),
           static_cast<double>(bounds[i]), static_cast<long long>(i));
  }
}

}  // namespace headway::kernels::hstu
