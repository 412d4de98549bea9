#pragma once

#include "headway/kernels/host_device.hpp"

#include <cstdint>

namespace headway::kernels {

/// Whether a token sees tokens behind it.
enum class Causality : std::uint8_t { kCausal, kBidirectional };

/// Which keys a query sees; 0 switches a rule off.
struct HstuMaskOptions {
  Causality causality = Causality::kCausal;
  std::int32_t window = 0;               ///< A token sees `window` positions back (bidirectional: and ahead).
  std::int32_t full_attention_tail = 0;  ///< So many last positions of the history, and then targets, see past it.
};

/// The mask of one sequence. Tokens are its keys in order: first contextual ones, then the history, then targets.
/// Queries are the last `num_queries` of them; earlier tokens are cached keys.
///
/// A token has a position: all contextual ones share the first, those of the history follow one by one, and all targets
/// share the one behind. A token sees itself, and of the other tokens
///   - those before its position (bidirectional: those of another position), at most `window` positions away unless it
///     is in the full-attention tail;
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

  /// The token of a query.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t token_of(std::int32_t query) const {
    return query + num_keys - num_queries;
  }

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t first_target() const { return num_keys - num_targets; }

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t target_position() const {
    return first_target() - shared_by_context();
  }

  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t position_of(std::int32_t token) const {
    std::int32_t const position = token < num_contextual ? 0 : token - shared_by_context();
    return position < target_position() ? position : target_position();
  }

  [[nodiscard]] HEADWAY_HOST_DEVICE bool sees(std::int32_t query, std::int32_t key) const {
    std::int32_t const token = token_of(query);
    if (token == key) return true;
    if (token < num_contextual) return key < first_target();
    std::int32_t const position = position_of(token);
    std::int32_t const back = position - position_of(key);
    std::int32_t const distance = options.causality == Causality::kBidirectional && back < 0 ? -back : back;
    return distance > 0 && distance <= window_of(position);
  }

 private:
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t shared_by_context() const {
    return num_contextual > 0 ? num_contextual - 1 : 0;
  }

  /// Positions that a token of the history or a target sees.
  [[nodiscard]] HEADWAY_HOST_DEVICE std::int32_t window_of(std::int32_t position) const {
    std::int32_t const tail = options.full_attention_tail;
    bool const is_in_tail = tail > 0 && position >= target_position() - tail;
    return options.window > 0 && !is_in_tail ? options.window : num_keys;
  }
};

}  // namespace headway::kernels
