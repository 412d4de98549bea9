#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headway::kernels::hstu {

/// Sets rows [begin, end) of all heads to 0.
inline void clear_rows(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns,
                       std::int64_t begin, std::int64_t end) {
  std::int64_t const bytes = size_of(args.type);
  for (std::int64_t token = begin; token < end; ++token) {
    for (std::int64_t head = 0; head < args.num_heads; ++head) {
      std::int64_t const at = (token * rows.token_stride + head * rows.head_stride) * bytes;
      std::memset(static_cast<std::byte*>(rows.data) + at, 0, static_cast<std::size_t>(columns * bytes));
    }
  }
}

/// Sets the rows behind the last offset, which belong to no sequence, to 0.
inline void clear_query_rows_behind(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns) {
  HstuSequences const& all = args.sequences;
  clear_rows(args, rows, columns, all.query_offsets[all.num_sequences], all.num_queries);
}
inline void clear_key_rows_behind(HstuForwardArgs const& args, JaggedHeads<void*> const& rows, std::int32_t columns) {
  HstuSequences const& all = args.sequences;
  clear_rows(args, rows, columns, all.key_offsets[all.num_sequences], all.num_keys);
}

}  // namespace headway::kernels::hstu
