#include "cuda/cuda_call.hpp"
#include "cuda/cuda_table.hpp"
#include "headway/comm/status.hpp"
#include "headway/embedding/cuda_table.hpp"
#include "headway/kernels/row_optimizer.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

/// Lets the default memory pool keep freed memory (1 GiB or more), since every call allocates scratch memory.
void keep_freed_memory(int device) {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  std::uint64_t threshold = 0;
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolGetAttribute");
  threshold = std::max(threshold, std::uint64_t{1} << 30);
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
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
  DeviceScope const scope(place_.device);
  keep_freed_memory(place_.device);
  check(cudaEventCreateWithFlags(&is_done_, cudaEventDisableTiming), "cudaEventCreate");
  cudaStream_t const stream = last_stream_ = place_.stream();
  for (std::uint8_t const stripe : stripe_map_.cells()) shares_[stripe] += 1.0 / StripeMap::kNumCells;
  stripe_of_cell_ = copy_to_device(std::span<std::uint8_t const>(stripe_map_.cells()), stream);
  stripe_views_ = DeviceBuffer<StripeView>(StripeMap::kCount, stream);
  state_ = DeviceBuffer<TableState>(1, stream);
  TableState const first;
  check(cudaMemcpyAsync(state_.data(), &first, sizeof first, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
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
    auto* const counter = &state_.data()->num_bad_rows;
    check(cudaMemsetAsync(counter, 0, sizeof *counter, stream), "cudaMemsetAsync");
    throw comm::UsageError(std::to_string(state.num_bad_rows) + " rows were given that are not of this table");
  }
  return state;
}

TableSize CudaTable::size() const {
  Call const call(*this);
  auto const& state = wait(call.stream());
  TableSize size{.rows = state.num_rows, .cold_rows = state.num_cold, .pending = state.num_pending};
  for (auto const& stripe : stripes_) size.key_bytes += stripe.num_buckets * sizeof(WideBucket);
  size.key_bytes += rows_.list_bytes();
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
  fresh.statistics = state.statistics;
  fresh.statistics.erased += state.num_rows;
  fresh.statistics.forgotten += state.num_pending;
  check(cudaMemcpyAsync(state_.data(), &fresh, sizeof fresh, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  make_stripes(stream);
  wait(stream);
  rows_.clear();
  ++generation_;
}

}  // namespace headway::embedding
