// SPDX-License-Identifier: Apache-2.0

// Settles the free lists after a call that took or freed rows; see free_rows.cuh.

#include "cuda/rows/free_rows.cuh"

namespace headway::embedding {

namespace {

// One block per precision. Example: from a list of 5 numbers a call took 2, and it freed 3, which lie behind the list
// at places 5 to 7. They move down by 2, to places 3 to 5, one block width at a time.
__global__ void __launch_bounds__(1024) settle_kernel(TableState* state, FreeLists lists) {
  auto& rows = state->free_rows[blockIdx.x];
  std::uint32_t* const list = lists.indices[blockIdx.x];
  std::uint32_t const from_list = min(rows.num_taken, rows.num_listed);
  std::uint32_t const from = rows.num_listed, to = rows.num_listed - from_list;
  for (std::uint32_t first = 0; from_list > 0 && first < rows.num_freed; first += blockDim.x) {
    std::uint32_t const i = first + threadIdx.x;
    bool const is_one = i < rows.num_freed;
    std::uint32_t const index = is_one ? list[from + i] : 0;
    __syncthreads();
    if (is_one) list[to + i] = index;
    __syncthreads();
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  rows.next += rows.num_taken - from_list;
  rows.num_listed = to + rows.num_freed;
  rows.num_taken = rows.num_freed = 0;
}

}  // namespace

void settle_free_rows_async(TableState* state, FreeLists const& lists, cudaStream_t stream) {
  settle_kernel<<<2, 1024, 0, stream>>>(state, lists);
  base::check_launch("settle_kernel");
}

}  // namespace headway::embedding
