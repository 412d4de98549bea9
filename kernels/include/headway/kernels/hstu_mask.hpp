// SPDX-License-Identifier: Apache-2.0

// Mask of HSTU attention: which keys a query sees. One definition (sees()) serves all kernels and the reference; the
// other functions answer the same question for ranges and blocks, so that kernels skip what nobody sees.

#pragma once

#include "headway/kernels/host_device.hpp"

#include <cstdint>

namespace headway::kernels {

/// Does a token see later tokens?
enum class Causality : std::uint8_t { kCausal, kBidirectional };

/// Mask rules of a call; 0 switches a rule off.
struct HstuMaskOptions {
  Causality causality = Causality::kCausal;
  std::int32_t window = 0;  ///< A token sees `window` positions back (bidirectional: also ahead).
  /// Number of last history positions that no window limits; if not 0, no window limits targets either.
  std::int32_t full_attention_tail = 0;
};

/// Range of keys [begin, end).
struct HstuKeyRange {
  std::int32_t begin = 0, end = 0;
};

/// Visibility of a block of queries and keys: of no pair, of some pairs, of all pairs.
enum class BlockVisibility : std::uint8_t { kNone, kPartial, kFull };

/// Mask of one sequence. Its tokens are its keys in order: contextual tokens, then the history, then targets. Queries
/// are the last `num_queries` tokens; earlier tokens are cached keys.
///
/// Each token has a position. All contextual tokens share the first position, history tokens follow one by one, and all
/// targets share the position behind the history. A token sees itself, and also
///   - tokens before its position (bidirectional: at any other position), at most `window` positions away unless the
///   token is in the full-attention tail;
///   - if it is contextual, the whole history and the other contextual tokens.
///
/// Example: 1 contextual, 3 of history, 2 targets, causal. Rows are queries:
///   c  1 1 1 1 . .
///   h  1 1 . . . .
///   h  1 1 1 . . .
///   h  1 1 1 1 . .
///   t  1 1 1 1 1 .
///   t  1 1 1 1 . 1
struct HstuSequenceMask {
  HstuMaskOptions options;
  std::int32_t num_queries = 0, num_keys = 0;
  std::int32_t num_contextual = 0, num_targets = 0;

  /// Index of a query among the tokens.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t token_of(std::int32_t query) const {
    return query + num_keys - num_queries;
  }

  /// First target among the tokens.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t first_target() const { return num_keys - num_targets; }

  /// Position that all targets share.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t target_position() const {
    return first_target() - shared_by_context();
  }

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t position_of(std::int32_t token) const {
    std::int32_t const position = token < num_contextual ? 0 : token - shared_by_context();
    return position < target_position() ? position : target_position();
  }

  /// Does a query see a key? This is the definition; the functions below are fast forms of it.
  [[nodiscard]] HEADWAY_HOST_DEVICE bool sees(std::int32_t query, std::int32_t key) const {
    std::int32_t const token = token_of(query);
    if (token == key) return true;
    if (token < num_contextual && key < first_target()) return true;
    std::int32_t const position = position_of(token);
    std::int32_t const back = position - position_of(key);
    std::int32_t const distance = options.causality == Causality::kBidirectional && back < 0 ? -back : back;
    return distance > 0 && distance <= window_of(position);
  }

  /// Range of keys that a query sees, besides its own token, which may lie inside or behind the range. Loops over keys
  /// use it: two comparisons per key instead of its position.
  [[nodiscard]] HEADWAY_HOST_DEVICE HstuKeyRange keys_seen_by(std::int32_t query) const {
    std::int32_t const token = token_of(query), position = position_of(token), window = window_of(position);
    std::int32_t const begin = position > window ? position - window + shared_by_context() : 0;
    bool const sees_ahead = options.causality == Causality::kBidirectional && token < first_target();
    if (sees_ahead && window >= target_position() - position) return {begin, num_keys};
    if (token < num_contextual) return {0, first_target()};
    return {begin, position + shared_by_context() + (sees_ahead ? window + 1 : 0)};
  }

  /// Visibility of keys [key_begin, key_end) to queries [query_begin, query_end), neither empty. The result is exact.
  [[nodiscard]] HEADWAY_HOST_DEVICE BlockVisibility visibility(std::int32_t query_begin, std::int32_t query_end,
                                                               std::int32_t key_begin, std::int32_t key_end) const {
    std::int32_t const begin = token_of(query_begin), end = token_of(query_end);
    Seen seen;
    if (begin < num_contextual) {  // All contextual queries see the same keys.
      std::int32_t const seen_end = keys_seen_by(query_begin).end;
      seen = {key_begin < seen_end, key_end <= seen_end};
    }
    if (end > num_contextual) {
      Seen const others = seen_by_others(begin > num_contextual ? begin : num_contextual, end, key_begin, key_end);
      seen = {seen.any || others.any, seen.all && others.all};
    }
    return seen.all ? BlockVisibility::kFull : seen.any ? BlockVisibility::kPartial : BlockVisibility::kNone;
  }

 private:
  /// Visibility of a set of pairs: is any pair visible, and are all?
  struct Seen {
    bool any = false, all = true;
  };

  /// Visibility to tokens [begin, end) of the history and the targets. Positions ascend with tokens without a gap, so a
  /// block has all distances from its least to its greatest.
  [[nodiscard]] HEADWAY_HOST_DEVICE Seen seen_by_others(std::int32_t begin, std::int32_t end, std::int32_t key_begin,
                                                        std::int32_t key_end) const {
    std::int32_t const first = position_of(begin), last = position_of(end - 1);
    std::int32_t const first_key = position_of(key_begin), last_key = position_of(key_end - 1);
    bool const is_ahead_seen = options.causality == Causality::kBidirectional;
    std::int32_t const tail = window_ends_at();

    Seen seen{begin < key_end && key_begin < end, !tells_targets_apart(begin, end, key_begin, key_end)};
    if (first < tail) {  // Tokens that a window may limit.
      std::int32_t const least = first - last_key, most = (last < tail ? last : tail - 1) - first_key;
      std::int32_t const window = window_of(first);
      seen.any = seen.any || (most > 0 && least <= window) || (is_ahead_seen && least < 0 && most >= -window);
      seen.all = seen.all && most <= window && least >= (is_ahead_seen ? -window : 0);
    }
    if (last >= tail) {
      std::int32_t const least = (first > tail ? first : tail) - last_key, most = last - first_key;
      seen.any = seen.any || most > 0 || (is_ahead_seen && least < 0);
      seen.all = seen.all && (is_ahead_seen || least >= 0);
    }
    return seen;
  }

  /// Are there two different targets, one among the tokens and one among the keys? They do not see each other.
  [[nodiscard]] HEADWAY_HOST_DEVICE bool tells_targets_apart(std::int32_t begin, std::int32_t end,
                                                             std::int32_t key_begin, std::int32_t key_end) const {
    if (begin < first_target()) begin = first_target();
    if (key_begin < first_target()) key_begin = first_target();
    bool const is_one_only = begin == key_begin && end == begin + 1 && key_end == key_begin + 1;
    return begin < end && key_begin < key_end && !is_one_only;
  }

  /// Tokens by which positions lag behind token indices: all contextual tokens but one.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t shared_by_context() const {
    return num_contextual > 0 ? num_contextual - 1 : 0;
  }

  /// First position that no window limits.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t window_ends_at() const {
    std::int32_t const tail = options.full_attention_tail;
    return tail > 0 ? target_position() - tail : num_keys + 1;
  }

  /// Farthest distance that a token of the history, or a target, sees.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t window_of(std::int32_t position) const {
    return options.window > 0 && position < window_ends_at() ? options.window : num_keys;
  }
};

}  // namespace headway::kernels
