#include "headway/kernels/jagged_offsets.hpp"

namespace headway::kernels {

namespace {

/// Exclusive prefix sum of lengths. @returns where the next offsets go
template <class Length>
std::int64_t* add_up(void const* lengths, std::int64_t size, std::int64_t* offsets) {
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    offsets[i] = offset;
    offset += static_cast<Length const*>(lengths)[i];
  }
  offsets[size] = offset;
  return offsets + size + 1;
}

template <class Length>
void find(MovedLengths const& lengths) {
  auto* const after = add_up<Length>(lengths.before, lengths.num_before, lengths.offsets);
  add_up<Length>(lengths.after, lengths.num_after, after);
}

}  // namespace

void find_offsets(MovedLengths const& lengths) {
  if (lengths.type == MovedLengths::LengthType::kInt32) return find<std::int32_t>(lengths);
  find<std::int64_t>(lengths);
}

}  // namespace headway::kernels
