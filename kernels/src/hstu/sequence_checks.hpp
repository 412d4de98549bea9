#pragma once

#include "headway/kernels/host_device.hpp"
#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

// Checks of sequences, shared by the CPU and devices so that both give the same texts. `refuse(format, values...)`
// takes a printf format with values of long long and strings, and does not return.

/// Offsets must begin at 0.
template <class Refuse>
HEADWAY_HOST_DEVICE void check_first_offsets(HstuSequences const& all, Refuse const& refuse) {
  long long const query = all.query_offsets[0], key = all.key_offsets[0];
  if (query != 0) refuse("HSTU attention: query_offsets begin at %lld and must at 0", query);
  if (key != 0) refuse("HSTU attention: key_offsets begin at %lld and must at 0", key);
}

/// Offsets of sequence b must not descend, exceed the announced length, or end behind the last token.
template <class Refuse>
HEADWAY_HOST_DEVICE void check_offsets(char const* name, std::int64_t const* offsets, std::int64_t b,
                                       std::int64_t count, std::int64_t most, Refuse const& refuse) {
  long long const begin = offsets[b], end = offsets[b + 1], sequence = b;
  if (end < begin)
    refuse("HSTU attention: %s_offsets descend from %lld to %lld in sequence %lld", name, begin, end, sequence);
  if (end - begin > most) {
    refuse("HSTU attention: sequence %lld has %lld tokens by %s_offsets, and at most %lld were announced", sequence,
           end - begin, name, static_cast<long long>(most));
  }
  if (end > count) {
    refuse("HSTU attention: %s_offsets end at %lld in sequence %lld, but there are %lld tokens", name, end, sequence,
           static_cast<long long>(count));
  }
}

/// Checks sequence b: offsets, then that counts of queries, contextual tokens and targets fit its keys.
template <class Refuse>
HEADWAY_HOST_DEVICE void check_sequence(HstuSequences const& all, std::int64_t b, Refuse const& refuse) {
  check_offsets("query", all.query_offsets, b, all.num_queries, all.max_queries, refuse);
  check_offsets("key", all.key_offsets, b, all.num_keys, all.max_keys, refuse);
  long long const sequence = b;
  long long const queries = all.query_offsets[b + 1] - all.query_offsets[b];
  long long const keys = all.key_offsets[b + 1] - all.key_offsets[b];
  if (queries > keys)
    refuse("HSTU attention: sequence %lld has %lld queries, more than its %lld keys", sequence, queries, keys);
  long long const contextual = all.num_contextual == nullptr ? 0 : all.num_contextual[b];
  long long const targets = all.num_targets == nullptr ? 0 : all.num_targets[b];
  if (contextual < 0) refuse("HSTU attention: sequence %lld has %lld contextual tokens", sequence, contextual);
  if (targets < 0) refuse("HSTU attention: sequence %lld has %lld targets", sequence, targets);
  if (contextual + targets > keys) {
    refuse("HSTU attention: sequence %lld has %lld contextual tokens and %lld targets, more than its %lld keys",
           sequence, contextual, targets, keys);
  }
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
