// SPDX-License-Identifier: Apache-2.0

// Life of a table on the GPU: construction, sizes and counters, clear(). The other calls are in the files beside it,
// one per subject: insertion, lookup, update, removal, eviction, growth, records.
//
// Who counts: kernels keep all counters in one TableState in device memory (state_), because only they know which
// keys were new. A call that must return an exact number goes through wait(): it copies the state to the host behind
// all work of the stream and blocks. Lookups and updates use the bounds of StateMirror instead.
//
// Errors of device code: kernels check the row ids that callers pass (RowLimits), skip bad ones and count them in
// num_bad_rows. The next wait() throws UsageError and resets the counter. The error is late, but it costs no wait.

#include "cuda/table/cuda_table.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/cuda_table.hpp"
#include "headway/kernels/row_optimizer.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

/// Lets the default memory pool keep freed memory (1 GiB or more), since every call allocates scratch memory. With
/// the default threshold of 0, the pool would give memory back to the driver at each synchronisation and map it
/// again.
void keep_freed_memory(int device) {
  cudaMemPool_t pool = nullptr;
  base::check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  std::uint64_t threshold = 0;
  base::check_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                   "cudaMemPoolGetAttribute");
  threshold = std::max(threshold, std::uint64_t{1} << 30);
  base::check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                   "cudaMemPoolSetAttribute");
}

}  // namespace

std::unique_ptr<Table> make_cuda_table(TableOptions const& options, CudaPlace const& place) {
  return std::make_unique<CudaTable>(options, place);
}

CudaTable::CudaTable(TableOptions const& options, CudaPlace const& place)
    : options_(checked(options)),
      optimizer_(options.optimizer),
      place_(place),
      rows_(place_.device, options_.dim, optimizer_),
      deduplicator_(make_cuda_deduplicator(place_)) {
  base::DeviceScope const scope(place_.device);
  keep_freed_memory(place_.device);
  base::check_cuda(cudaEventCreateWithFlags(&is_done_, cudaEventDisableTiming), "cudaEventCreate");
  // The stream is also that of "the last call", so that the first call on another stream waits for this set-up.
  cudaStream_t const stream = last_stream_ = place_.stream();
  // A cell is one value of the hash bits that choose the stripe; all cells have equal shares of the keys.
  for (std::uint8_t const stripe : stripe_map_.cells()) shares_[stripe] += 1.0 / StripeMap::kNumCells;
  stripe_of_cell_ = copy_to_device(std::span<std::uint8_t const>(stripe_map_.cells()), stream);
  stripe_views_ = DeviceBuffer<StripeView>(StripeMap::kCount, stream);
  state_ = DeviceBuffer<TableState>(1, stream);
  TableState const first;
  base::check_cuda(cudaMemcpyAsync(state_.data(), &first, sizeof first, cudaMemcpyHostToDevice, stream),
                   "cudaMemcpyAsync");
  make_stripes(stream);
  wait(stream);
}

CudaTable::~CudaTable() {
  static_cast<void>(cudaStreamSynchronize(last_stream_));
  static_cast<void>(cudaEventDestroy(is_done_));
}

std::size_t CudaTable::state_size() const { return rows_.view().state_size + (rows_.view().is_row_wise ? 1 : 0); }

TableState const& CudaTable::wait(cudaStream_t stream) const {
  auto const& state = mirror_.wait(state_.data(), stream);
  if (state.num_bad_rows > 0) {
    // Reset it first: the table stays usable, and the next call must not report these rows again.
    auto* const counter = &state_.data()->num_bad_rows;
    base::check_cuda(cudaMemsetAsync(counter, 0, sizeof *counter, stream), "cudaMemsetAsync");
    throw base::UsageError(std::to_string(state.num_bad_rows) + " rows were given that are not of this table");
  }
  return state;
}

TableSize CudaTable::size() const {
  Call const call(*this);
  auto const& state = wait(call.stream());
  // Cold rows are in bfloat16, and pending keys wait for a row.
  TableSize size{.rows = state.num_rows, .cold_rows = state.num_cold, .pending = state.num_pending};
  for (auto const& stripe : stripes_) size.key_bytes += stripe.num_buckets * sizeof(WideBucket);
  size.key_bytes += rows_.list_bytes();  // Lists of free rows.
  // Row 0 of each precision stands for kNone, so `next` - 1 rows were ever used. Freed ones still count: rows keep
  // memory.
  for (auto const precision : {Precision::kFloat32, Precision::kBfloat16}) {
    auto const& rows = state.free_rows[static_cast<std::size_t>(precision)];
    size.row_bytes += std::size_t{rows.next - 1} * rows_.row_bytes(precision);
  }
  return size;
}

TableStatistics CudaTable::statistics() const {
  Call const call(*this);
  return wait(call.stream()).statistics;
}

void CudaTable::clear() {
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  auto const& state = wait(stream);
  TableState fresh;
  // Statistics count since the table was made, so they survive clear(); the removed keys are added to them.
  fresh.statistics = state.statistics;
  fresh.statistics.erased += state.num_rows;
  fresh.statistics.forgotten += state.num_pending;
  base::check_cuda(cudaMemcpyAsync(state_.data(), &fresh, sizeof fresh, cudaMemcpyHostToDevice, stream),
                   "cudaMemcpyAsync");
  make_stripes(stream);
  wait(stream);
  rows_.clear();
  num_parts_left_ = 0;  // An eviction may take one part of the keys in each step.
  ++generation_;
}

}  // namespace headway::embedding
