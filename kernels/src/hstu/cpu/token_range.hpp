// SPDX-License-Identifier: Apache-2.0

// Ranges of tokens and their blocks.

#pragma once

#include "hstu/cpu/block_kernels.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Queries or keys [begin, begin + size) of a sequence.
struct TokenRange {
  std::int64_t begin, size;
};

/// Calls visit(range) for the blocks of a range in order; all but the last have kBlockSize tokens.
template <class Visit>
void for_each_block(TokenRange range, Visit visit) {
  std::int64_t const end = range.begin + range.size;
  for (std::int64_t begin = range.begin; begin < end; begin += kBlockSize)
    visit(TokenRange{begin, end - begin < kBlockSize ? end - begin : kBlockSize});
}

/// Visibility of a block of queries and keys.
[[nodiscard]] inline BlockVisibility visibility_of(Sequence const& sequence, TokenRange queries, TokenRange keys) {
  auto const position = [](std::int64_t token) { return static_cast<std::int32_t>(token); };
  return sequence.mask.visibility(position(queries.begin), position(queries.begin + queries.size), position(keys.begin),
                                  position(keys.begin + keys.size));
}

}  // namespace headway::kernels::hstu
