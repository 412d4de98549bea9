// SPDX-License-Identifier: Apache-2.0

// The BatchDevice of a CUDA device: memory, unique keys and kernels for the batches of a ShardedTable.
//
// Idea: every call checks sizes on the host and enqueues kernels on the caller's stream. The kernels are in the files
// beside this one, one subject each: piece_kernels.cu, value_kernels.cu, sum_of_squares.cu, key_values.cu,
// positions.cu. Deduplication is that of CudaDeduplicator, in blocks that this class allocates.
//
// Example: the batch 7 9 7 on 2 ranks. deduplicate() gives blocks with room for 3 keys: ids 7 9 and one that is not
// set, and 2 in size_on_device. sort_by_owner() may give ids 9 7 in new blocks, with counts 1 1 of keys per rank.
// fetch() of these counts is how the host learns that there are 2.
//
// Invariants: only read() and HostCopy (its wait() and destructor) wait for the device.
//   The only state is the free list of host_copies.cu, which has a lock. So calls of several threads on several streams
//   do not disturb each other.
//   Memory is freed in the order of the stream on which it was allocated. A caller that uses it on another stream
//   orders the two by record() and wait_for() before the last Block goes.
// Complexity: that of the kernels; deduplicate() and from_unique() allocate up to 7 blocks, sort_by_owner() up to 9.

#include "cuda/exchange/batch_kernels.hpp"
#include "cuda/exchange/host_copies.hpp"
#include "headway/base/cuda_check.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/cuda_table.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {

namespace {

constexpr std::size_t kEnd = std::size_t{1} << 31;  ///< Numbers of keys are below it.

/// Checks a batch and its values. `values` may be longer, as the host may have learned the number of keys since.
void expect_complete(KeyValues const& values, std::size_t dim) {
  auto const& keys = values.keys;
  base::expects(keys.tables.empty() || keys.tables.size() == keys.size(), "not one table for each key");
  base::expects(keys.size() < kEnd, "a batch on a device has less than 2^31 keys");
  base::expects(dim >= 1 && dim < kEnd && values.values.size() >= keys.size() * dim,
                std::to_string(values.values.size()) + " values for " + std::to_string(keys.size()) + " keys of " +
                    std::to_string(dim));
}

/// Frees memory in the order of the stream on which it was allocated.
struct FreeOnStream {
  int device;
  cudaStream_t stream;

  void operator()(void* memory) const noexcept {
    // The default stream is that of the current device, so `device` has to be current.
    int before = device;
    static_cast<void>(cudaGetDevice(&before));
    if (before != device) static_cast<void>(cudaSetDevice(device));
    static_cast<void>(cudaFreeAsync(memory, stream));
    if (before != device) static_cast<void>(cudaSetDevice(before));
  }
};

/// A point of a stream; see BatchDevice::record().
struct Point {
  explicit Point(cudaStream_t the_stream) : stream(the_stream) {}
  Point(Point const&) = delete;
  Point& operator=(Point const&) = delete;
  ~Point() {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }

  cudaStream_t stream;
  cudaEvent_t event = nullptr;
};

class CudaBatchDevice final : public BatchDevice {
 public:
  CudaBatchDevice(CudaPlace place, CudaAllocate allocate)
      : place_(std::move(place)),
        allocate_(std::move(allocate)),
        deduplicator_(make_cuda_deduplicator(place_)),
        host_copies_(place_.device) {}

  [[nodiscard]] bool is_host() const override { return false; }

  [[nodiscard]] std::shared_ptr<void> allocate(std::size_t num_bytes) override {
    if (num_bytes == 0) return nullptr;
    if (allocate_) return allocate_(num_bytes);
    // make_table() lets the default pool keep freed memory, so this costs no system call in later batches.
    base::DeviceScope const scope(place_.device);
    cudaStream_t const stream = place_.stream();
    void* memory = nullptr;
    base::check_cuda(cudaMallocAsync(&memory, num_bytes, stream), "cudaMallocAsync");
    return {memory, FreeOnStream{.device = place_.device, .stream = stream}};
  }

  [[nodiscard]] std::unique_ptr<Table> make_table(TableOptions const& options) override {
    return make_cuda_table(options, place_);
  }

  void join(std::span<Feature const> features, JoinedFeatures const& out) override {
    join_features(features, out, place_);
  }

  [[nodiscard]] UniqueBlocks deduplicate(Keys const& keys) override {
    auto unique = room_for(keys.size(), !keys.tables.empty(), keys.table);
    deduplicator_->deduplicate(keys, view_of(unique));
    unique.are_unique = true;
    return unique;
  }

  [[nodiscard]] UniqueBlocks from_unique(Keys const& keys) override {
    auto unique = room_for(keys.size(), !keys.tables.empty(), keys.table);
    deduplicator_->from_unique(keys, view_of(unique));
    if (keys.num_known == nullptr) unique.size = keys.size();
    unique.are_unique = keys.are_unique;
    return unique;
  }

  [[nodiscard]] std::pair<UniqueBlocks, Block<std::int64_t>> sort_by_owner(UniqueBlocks const& unique,
                                                                           std::uint32_t num_ranks) override {
    auto const order = block<std::uint32_t>(unique.ids.size());
    auto counts = block<std::int64_t>(num_ranks);
    auto const from = view_of(unique);
    deduplicator_->route(from.keys(), order.span, counts.span);
    auto sorted = room_for(unique.ids.size(), !unique.tables.empty(), unique.table);
    deduplicator_->reorder(from, order.span, view_of(sorted));
    sorted.size = unique.size;
    sorted.are_unique = unique.are_unique;
    return {std::move(sorted), std::move(counts)};
  }

  void expand(UniqueBlocks const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
              std::span<float> out) override {
    expect_rows(unique, dim, values.size());
    deduplicator_->expand(view_of(unique), bags, dim, values, out);
  }

  void reduce(UniqueBlocks const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
              std::span<float> sums) override {
    expect_rows(unique, dim, sums.size());
    deduplicator_->reduce(view_of(unique), bags, dim, values, sums);
  }

  void copy(std::span<CopyPiece const> pieces) override {
    base::DeviceScope const scope(place_.device);
    copy_async(pieces, place_.stream());
  }

  void encode(std::span<EncodePiece const> pieces) override {
    for (auto const& [keys, words] : pieces) {
      base::expects(keys.counts.size() == keys.size() && keys.num_known == nullptr,
                    "keys that travel have counts, and the host knows their number");
      base::expects(keys.tables.empty() || keys.tables.size() == keys.size(), "not one table for each key");
      base::expects(keys.size() < kEnd, "a batch on a device has less than 2^31 keys");
    }
    base::DeviceScope const scope(place_.device);
    encode_async(pieces, place_.stream());
  }

  void decode(std::span<DecodePiece const> pieces) override {
    base::DeviceScope const scope(place_.device);
    decode_async(pieces, place_.stream());
  }

  void fill(std::span<float> values, float value) override {
    base::DeviceScope const scope(place_.device);
    fill_async(values, value, place_.stream());
  }

  void write(std::span<float const> on_host, std::span<float> to) override {
    base::expects(on_host.size() == to.size(), "not as many values on the host as on the device");
    base::DeviceScope const scope(place_.device);
    write_async(on_host, to.data(), place_.stream());
  }

  [[nodiscard]] std::vector<float> read(std::span<float const> values) override { return read_any(values); }
  [[nodiscard]] std::vector<double> read(std::span<double const> values) override { return read_any(values); }
  [[nodiscard]] std::vector<std::uint64_t> read(std::span<std::uint64_t const> values) override {
    return read_any(values);
  }

  void add_sizes(std::span<SizeTerm const> terms) override {
    base::DeviceScope const scope(place_.device);
    add_sizes_async(terms, place_.stream());
  }

  [[nodiscard]] std::unique_ptr<HostCopy> fetch(Block<std::int64_t> const& source,
                                                std::function<void(CudaStream)> const& wait) override {
    return host_copies_.start(source, place_.stream(), wait);
  }

  void interleave(std::span<std::int64_t const* const> columns, std::size_t size, std::int64_t* out) override {
    base::DeviceScope const scope(place_.device);
    interleave_async(columns, size, out, place_.stream());
  }

  void count_refused(std::span<KeyStatus const> statuses, float* result) override {
    base::DeviceScope const scope(place_.device);
    count_refused_async(statuses, result, place_.stream());
  }

  void mask_weights(std::span<RowId const> rows, std::span<std::uint32_t const> inverse_indices,
                    std::span<float const> weights, std::span<float> out) override {
    base::expects(out.size() == inverse_indices.size() && (weights.empty() || weights.size() == out.size()),
                  "not one weight for each key");
    base::DeviceScope const scope(place_.device);
    mask_weights_async(rows, inverse_indices, weights, out, place_.stream());
  }

  void mask_rows(std::span<RowId const> rows, std::size_t dim, std::span<float> values) override {
    base::expects(values.size() >= rows.size() * dim && rows.size() < kEnd, "not one row of values for each row");
    base::DeviceScope const scope(place_.device);
    mask_rows_async(rows, dim, values.data(), place_.stream());
  }

  void scale(std::span<float> values, float factor) override {
    base::DeviceScope const scope(place_.device);
    scale_async(values, factor, place_.stream());
  }

  void divide(std::span<float> values, float divisor) override {
    // These are the bits of `values / divisor` in torch on CUDA, which multiplies by the reciprocal too.
    scale(values, 1.0F / divisor);
  }

  void scale_by(std::span<float> values, float const* factor) override {
    base::DeviceScope const scope(place_.device);
    scale_by_async(values, factor, place_.stream());
  }

  void mark_finite(std::span<float const> values, float* mark) override {
    base::DeviceScope const scope(place_.device);
    mark_finite_async(values, mark, place_.stream());
  }

  void add_squares(KeyValues const& values, std::size_t dim, double* sum) override {
    expect_complete(values, dim);
    base::DeviceScope const scope(place_.device);
    add_squares_async(values, dim, sum, place_.stream());
  }

  void clear(std::span<std::byte> memory) override {
    if (memory.empty()) return;
    base::DeviceScope const scope(place_.device);
    base::check_cuda(cudaMemsetAsync(memory.data(), 0, memory.size(), place_.stream()), "cudaMemsetAsync");
  }

  [[nodiscard]] KeyValueBlocks concatenate(std::span<KeyValues const> pieces, std::size_t dim) override {
    std::size_t num_keys = 0;
    bool has_unknown = false;
    for (auto const& piece : pieces) {
      expect_complete(piece, dim);
      num_keys += piece.keys.size();
      has_unknown |= piece.keys.num_known != nullptr;
    }
    base::expects(num_keys < kEnd, "a batch on a device has less than 2^31 keys");
    KeyValueBlocks all{.ids = block<std::uint64_t>(num_keys),
                       .tables = block<std::uint32_t>(num_keys),
                       .values = block<float>(num_keys * dim)};
    // The last offset is the number of known keys.
    auto const offsets = block<std::uint32_t>(has_unknown ? pieces.size() + 1 : 0);
    if (has_unknown) all.size_on_device = {.span = offsets.span.last(1), .owner = offsets.owner};
    base::DeviceScope const scope(place_.device);
    concatenate_async(pieces, dim, all, offsets.data(), place_.stream());
    return all;
  }

  [[nodiscard]] KeyValueBlocks select_table(KeyValues const& values, std::span<RowId const> rows, std::size_t dim,
                                            std::uint32_t table) override {
    expect_complete(values, dim);
    base::expects(rows.size() >= values.keys.size(), "not one row for each key");
    std::size_t const num_keys = values.keys.size();
    KeyValueBlocks selected{.ids = block<std::uint64_t>(num_keys),
                            .tables = block<std::uint32_t>(num_keys),
                            .values = block<float>(num_keys * dim),
                            .rows = block<RowId>(num_keys),
                            .size_on_device = block<std::uint32_t>(1)};
    base::DeviceScope const scope(place_.device);
    select_table_async(values, rows, dim, table, selected, place_.stream());
    return selected;
  }

  [[nodiscard]] Block<std::uint32_t> count_if_any(Keys const& keys, std::span<float const> flags, std::size_t first,
                                                  std::size_t stride) override {
    base::expects(stride >= 1 && keys.size() < kEnd, "flags have a stride, and a batch less than 2^31 keys");
    auto result = block<std::uint32_t>(1);
    base::DeviceScope const scope(place_.device);
    count_if_any_async(keys, flags, first, stride, result.data(), place_.stream());
    return result;
  }

  void mark_shared(std::span<std::uint32_t const> inverse_indices, std::size_t num_first,
                   std::span<float> marks) override {
    base::expects(marks.size() == inverse_indices.size(), "not one mark for each position");
    base::DeviceScope const scope(place_.device);
    mark_shared_async(inverse_indices, num_first, marks.data(), place_.stream());
  }

  void mark_absent(std::span<RowId const> rows, std::span<float> marks) override {
    base::expects(marks.size() == rows.size(), "not one mark for each row");
    base::DeviceScope const scope(place_.device);
    mark_absent_async(rows, marks.data(), place_.stream());
  }

  [[nodiscard]] SplitPositions split(std::span<float const> marks, std::span<std::size_t const> sizes) override {
    base::expects(marks.size() < kEnd, "a batch on a device has less than 2^31 keys");
    SplitPositions all{.marked = block<std::uint32_t>(marks.size()),
                       .others = block<std::uint32_t>(marks.size()),
                       .counts = block<std::int64_t>(2 * sizes.size())};
    base::DeviceScope const scope(place_.device);
    split_async(marks, sizes, all, place_.stream());
    return all;
  }

  void gather_rows(std::span<float const> rows, std::size_t width, std::span<std::uint32_t const> positions,
                   std::span<float> out) override {
    base::expects(out.size() >= positions.size() * width, "not one row for each position");
    base::DeviceScope const scope(place_.device);
    move_rows_async(rows, width, positions, true, out.data(), place_.stream());
  }

  void scatter_rows(std::span<float const> rows, std::size_t width, std::span<std::uint32_t const> positions,
                    std::span<float> out) override {
    base::expects(rows.size() >= positions.size() * width, "not one row for each position");
    base::DeviceScope const scope(place_.device);
    move_rows_async(rows, width, positions, false, out.data(), place_.stream());
  }

  void select_keys(Keys const& keys, std::span<std::uint32_t const> positions, KeyColumns const& out) override {
    base::DeviceScope const scope(place_.device);
    select_keys_async(keys, positions, out, place_.stream());
  }

  [[nodiscard]] std::shared_ptr<void> record() override {
    base::DeviceScope const scope(place_.device);
    auto point = std::make_shared<Point>(place_.stream());
    base::check_cuda(cudaEventCreateWithFlags(&point->event, cudaEventDisableTiming), "cudaEventCreate");
    base::check_cuda(cudaEventRecord(point->event, point->stream), "cudaEventRecord");
    return point;
  }

  void wait_for(std::shared_ptr<void> const& point) override {
    if (point == nullptr) return;
    auto const& recorded = *static_cast<Point const*>(point.get());
    // Work of one stream is in order. An event of a captured graph could not be waited for after the capture.
    if (recorded.stream == place_.stream()) return;
    base::DeviceScope const scope(place_.device);
    base::check_cuda(cudaStreamWaitEvent(place_.stream(), recorded.event), "cudaStreamWaitEvent");
  }

 private:
  /// Blocks for as many unique keys as the batch has keys.
  [[nodiscard]] UniqueBlocks room_for(std::size_t num_keys, bool has_tables, std::uint32_t table) {
    return {.ids = block<std::uint64_t>(num_keys),
            .tables = block<std::uint32_t>(has_tables ? num_keys : 0),
            .counts = block<std::uint32_t>(num_keys),
            .table = table,
            .inverse_indices = block<std::uint32_t>(num_keys),
            .csr_indices = block<std::uint32_t>(num_keys),
            .csr_offsets = block<std::uint32_t>(num_keys + 1),
            .size_on_device = block<std::uint32_t>(1)};
  }

  /// The whole blocks. UniqueBlocks::keys() is shorter if the host knows the number of keys.
  [[nodiscard]] static CudaUniqueKeys view_of(UniqueBlocks const& unique) {
    base::expects(unique.on_host == nullptr && !unique.size_on_device.empty(), "unique keys of another device");
    return {.ids = unique.ids.span,
            .tables = unique.tables.span,
            .table = unique.table,
            .counts = unique.counts.span,
            .inverse_indices = unique.inverse_indices.span,
            .csr_indices = unique.csr_indices.span,
            .csr_offsets = unique.csr_offsets.span,
            .size = unique.size_on_device.data()};
  }

  /// Copies values to the host. Waits for the stream.
  template <class T>
  [[nodiscard]] std::vector<T> read_any(std::span<T const> values) const {
    base::DeviceScope const scope(place_.device);
    cudaStream_t const stream = place_.stream();
    std::vector<T> on_host(values.size());
    if (!values.empty()) {
      base::check_cuda(
          cudaMemcpyAsync(on_host.data(), values.data(), values.size_bytes(), cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
    }
    base::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return on_host;
  }

  static void expect_rows(UniqueBlocks const& unique, std::size_t dim, std::size_t num_values) {
    base::expects(num_values >= unique.num_rows() * dim,
                  "values must have a row for each of " + std::to_string(unique.num_rows()) + " unique keys");
  }

  CudaPlace place_;
  CudaAllocate allocate_;
  std::unique_ptr<CudaDeduplicator> deduplicator_;
  HostCopies host_copies_;
};

}  // namespace

std::shared_ptr<BatchDevice> make_cuda_batch_device(CudaPlace const& place, CudaAllocate allocate) {
  return std::make_shared<CudaBatchDevice>(place, std::move(allocate));
}

}  // namespace headway::embedding
