// SPDX-License-Identifier: Apache-2.0

// Memory and kernels of one device for the batches of a ShardedTable: host memory, or a CUDA device.
//
// On a CUDA device all calls are stream-ordered on the caller's stream, and the host does not wait, unless a comment
// says so. Then only the device knows how many keys of a batch are unique: arrays have room for all keys, of which the
// first *UniqueBlocks::size_on_device are valid, until the host learns the number. The known keys of a batch are those
// below *Keys::num_known, or all if that is null.
//
// Shapes: K keys of a batch, U of them unique, B bags (lists of keys whose embeddings are summed), R ranks.

#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/cuda_place.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Elements in the memory of a device. Copies share them; the last one frees the memory.
template <class T>
struct Block {
  std::span<T> span{};
  std::shared_ptr<void const> owner{};

  [[nodiscard]] T* data() const { return span.data(); }
  [[nodiscard]] std::size_t size() const { return span.size(); }
  [[nodiscard]] bool empty() const { return span.empty(); }
  [[nodiscard]] Block first(std::size_t count) const { return {span.first(count), owner}; }
};

/// UniqueKeys in the memory of a device. deduplicator.hpp explains the fields.
struct UniqueBlocks {
  Block<std::uint64_t> ids{};                             ///< (U, or K if the host does not know U)
  Block<std::uint32_t> tables{}, counts{};                ///< (as `ids`) `tables` may be empty.
  std::uint32_t table = 0;                                ///< Table of all keys if `tables` is empty.
  Block<std::uint32_t> inverse_indices{}, csr_indices{};  ///< (K)
  Block<std::uint32_t> csr_offsets{};                     ///< (ids + 1)
  Block<std::uint32_t> size_on_device{};                  ///< (1) CUDA only.
  std::optional<std::size_t> size{};                      ///< U, if the host knows it.
  bool are_unique = false;                                ///< False: duplicates were not looked for.
  std::shared_ptr<UniqueKeys const> on_host{};            ///< Host only: the same keys.

  /// Rows of arrays with one row for each unique key: U, or its upper bound if the host does not know U.
  [[nodiscard]] std::size_t num_rows() const { return size.value_or(ids.size()); }
  [[nodiscard]] Keys keys() const {
    std::size_t const n = num_rows();
    return {.ids = ids.span.first(n),
            .tables = tables.empty() ? std::span<std::uint32_t const>() : tables.span.first(n),
            .table = table,
            .counts = counts.span.first(n),
            .are_unique = are_unique,
            .num_known = size ? nullptr : size_on_device.data()};
  }
  [[nodiscard]] CsrMap csr() const {
    return {.inverse_indices = inverse_indices.span, .csr_indices = csr_indices.span, .csr_offsets = csr_offsets.span};
  }
};

/// Bytes to copy within a device.
struct CopyPiece {
  void* to;
  void const* from;
  std::size_t num_bytes;
};

/// Keys and their encoding for an exchange: two 64-bit words per key. The first is the id. The second has the table in
/// its lower half and the count in its upper half.
struct EncodePiece {
  Keys keys;  ///< With counts, without num_known.
  std::uint64_t* words;
};
struct DecodePiece {
  std::uint64_t const* words;
  std::size_t num_keys;
  std::uint64_t* ids;
  std::uint32_t *tables, *counts;
};

/// Keys in memory that is written.
struct KeyColumns {
  std::uint64_t* ids;
  std::uint32_t *tables, *counts;
};

/// A size that is added to a total, both in the memory of the device.
struct SizeTerm {
  std::uint32_t const* size;
  std::uint64_t* total;
};

/// Keys with a row of floats each.
struct KeyValues {
  Keys keys;
  std::span<float const> values;  ///< (keys, dim)
};

/// Result of concatenate() and select_table(): keys with values, in new memory.
struct KeyValueBlocks {
  Block<std::uint64_t> ids{};
  Block<std::uint32_t> tables{};
  Block<float> values{};
  Block<RowId> rows{};                    ///< Only from select_table().
  Block<std::uint32_t> size_on_device{};  ///< (1) CUDA only: number of valid keys.

  [[nodiscard]] Keys keys() const {
    return {.ids = ids.span, .tables = tables.span, .num_known = size_on_device.data()};
  }
};

/// Positions of an array, in two lists; see BatchDevice::split().
struct SplitPositions {
  Block<std::uint32_t> marked{}, others{};  ///< Ascending. Of as many as `counts` add up to, or more that are not set.
  Block<std::int64_t> counts{};             ///< (2, segments) Marked positions, and others.
};

/// A copy to host memory that is under way.
class HostCopy {
 public:
  virtual ~HostCopy() = default;
  /// Waits for the copy, but not for work that was enqueued after it. The span lives as long as this object.
  [[nodiscard]] virtual std::span<std::int64_t const> wait() = 0;
};

/// See the top of this file. Not thread-safe, except that work of one thread may follow that of another.
class BatchDevice {
 public:
  BatchDevice() = default;
  BatchDevice(BatchDevice const&) = delete;
  BatchDevice& operator=(BatchDevice const&) = delete;
  virtual ~BatchDevice() = default;

  /// Are blocks in host memory? Then calls are complete when they return.
  [[nodiscard]] virtual bool is_host() const = 0;
  /// Memory that is not initialised, aligned to 64 bytes. It is freed in the order of the caller's stream: other
  /// streams that use it must be waited for before.
  [[nodiscard]] virtual std::shared_ptr<void> allocate(std::size_t num_bytes) = 0;
  template <class T>
  [[nodiscard]] Block<T> block(std::size_t size) {
    if (size == 0) return {};
    auto owner = allocate(size * sizeof(T));
    return {std::span(static_cast<T*>(owner.get()), size), std::move(owner)};
  }
  [[nodiscard]] virtual std::unique_ptr<Table> make_table(TableOptions const& options) = 0;

  /// join_features() of this device.
  virtual void join(std::span<Feature const> features, JoinedFeatures const& out) = 0;
  /// Finds the unique keys of a batch.
  [[nodiscard]] virtual UniqueBlocks deduplicate(Keys const& keys) = 0;
  /// Makes each key a unique key of its own, without looking for duplicates.
  [[nodiscard]] virtual UniqueBlocks from_unique(Keys const& keys) = 0;
  /// The same unique keys sorted by owner, and (R) the number of keys for each owner.
  [[nodiscard]] virtual std::pair<UniqueBlocks, Block<std::int64_t>> sort_by_owner(UniqueBlocks const& unique,
                                                                                   std::uint32_t num_ranks) = 0;
  /// Expands values of unique keys, (num_rows, dim), to bags, (B, dim).
  virtual void expand(UniqueBlocks const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
                      std::span<float> out) = 0;
  /// Reduces values of bags, (B, dim), to unique keys, (num_rows, dim).
  virtual void reduce(UniqueBlocks const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
                      std::span<float> sums) = 0;

  virtual void copy(std::span<CopyPiece const> pieces) = 0;
  virtual void encode(std::span<EncodePiece const> pieces) = 0;
  virtual void decode(std::span<DecodePiece const> pieces) = 0;
  virtual void fill(std::span<float> values, float value) = 0;
  /// Writes values of the host to the device.
  virtual void write(std::span<float const> on_host, std::span<float> to) = 0;
  /// Reads values. Waits for the stream.
  [[nodiscard]] virtual std::vector<float> read(std::span<float const> values) = 0;
  [[nodiscard]] virtual std::vector<double> read(std::span<double const> values) = 0;
  [[nodiscard]] virtual std::vector<std::uint64_t> read(std::span<std::uint64_t const> values) = 0;
  /// *total += *size for each term, by atomic additions.
  virtual void add_sizes(std::span<SizeTerm const> terms) = 0;
  /// Starts to copy numbers to host memory on a stream of its own, after the work that the caller's stream has now.
  /// Later work of the caller's stream does not delay it.
  /// @param wait lets a stream wait for other work that writes the numbers; not called in host memory
  [[nodiscard]] virtual std::unique_ptr<HostCopy> fetch(Block<std::int64_t> const& source,
                                                        std::function<void(CudaStream)> const& wait) = 0;
  /// out[i * columns + j] = columns[j][i]. @param columns arrays of `size` numbers
  virtual void interleave(std::span<std::int64_t const* const> columns, std::size_t size, std::int64_t* out) = 0;

  /// *result = number of statuses that are kNoRoom. Exact below 2^24.
  virtual void count_refused(std::span<KeyStatus const> statuses, float* result) = 0;
  /// out[i] = weight of position i (1 if `weights` is empty), times 0 if its unique key has no row.
  /// @param inverse_indices, out (K)
  virtual void mask_weights(std::span<RowId const> rows, std::span<std::uint32_t const> inverse_indices,
                            std::span<float const> weights, std::span<float> out) = 0;
  /// values[i, :] = 0 for each i whose row is kNone. @param values (rows, dim)
  virtual void mask_rows(std::span<RowId const> rows, std::size_t dim, std::span<float> values) = 0;

  /// values *= factor; values /= divisor.
  virtual void scale(std::span<float> values, float factor) = 0;
  virtual void divide(std::span<float> values, float divisor) = 0;
  /// values *= *factor, which is in the memory of the device.
  virtual void scale_by(std::span<float> values, float const* factor) = 0;
  /// *mark = 1 if all values are finite, or else NaN.
  virtual void mark_finite(std::span<float const> values, float* mark) = 0;
  /// *sum += squares of the values of the known keys, in float64.
  virtual void add_squares(KeyValues const& values, std::size_t dim, double* sum) = 0;
  /// Sets all bytes to 0.
  virtual void clear(std::span<std::byte> memory) = 0;
  /// The known keys of all pieces, one after the other. Entries behind them are not set.
  [[nodiscard]] virtual KeyValueBlocks concatenate(std::span<KeyValues const> pieces, std::size_t dim) = 0;
  /// The known keys of one table with their rows, in their order. Entries behind them are not set.
  [[nodiscard]] virtual KeyValueBlocks select_table(KeyValues const& values, std::span<RowId const> rows,
                                                    std::size_t dim, std::uint32_t table) = 0;
  /// CUDA only: (1) the number of known `keys` if any of flags[first], flags[first + stride], ... is not 0; else 0.
  [[nodiscard]] virtual Block<std::uint32_t> count_if_any(Keys const& keys, std::span<float const> flags,
                                                          std::size_t first, std::size_t stride) = 0;

  /// marks[i] = 1 if the unique key of position i has positions both below `num_first` and from it on; else 0.
  /// @param inverse_indices, marks (K)
  virtual void mark_shared(std::span<std::uint32_t const> inverse_indices, std::size_t num_first,
                           std::span<float> marks) = 0;
  /// marks[i] = 1 for each i whose row is kNone.
  virtual void mark_absent(std::span<RowId const> rows, std::span<float> marks) = 0;
  /// Lists the positions of marks above 0, and of those that are 0. Marks below 0 are in neither list.
  /// @param marks (positions)
  /// @param sizes (segments) positions of each segment; they add up to all
  [[nodiscard]] virtual SplitPositions split(std::span<float const> marks, std::span<std::size_t const> sizes) = 0;
  /// out[i, :] = rows[positions[i], :]. @param out (positions, width)
  virtual void gather_rows(std::span<float const> rows, std::size_t width, std::span<std::uint32_t const> positions,
                           std::span<float> out) = 0;
  /// out[positions[i], :] = rows[i, :]. @param rows (positions, width)
  virtual void scatter_rows(std::span<float const> rows, std::size_t width, std::span<std::uint32_t const> positions,
                            std::span<float> out) = 0;
  /// The keys at some positions. @param keys with tables and counts @param out as many keys as positions
  virtual void select_keys(Keys const& keys, std::span<std::uint32_t const> positions, KeyColumns const& out) = 0;

  /// record() marks a point of the caller's stream (a CUDA event). wait_for() lets the caller's stream wait for such a
  /// point. Null in host memory.
  [[nodiscard]] virtual std::shared_ptr<void> record() = 0;
  virtual void wait_for(std::shared_ptr<void> const& point) = 0;
};

/// Host memory. Without `thread_pool`, calls run on the caller's thread alone.
[[nodiscard]] std::shared_ptr<BatchDevice> make_host_batch_device(
    std::shared_ptr<base::ThreadPool> thread_pool = nullptr);

/// Allocates memory of a CUDA device on the caller's stream, aligned to 64 bytes.
using CudaAllocate = std::function<std::shared_ptr<void>(std::size_t num_bytes)>;

/// A CUDA device.
/// @param allocate none: cudaMallocAsync() of the default pool
/// @throws base::SystemError if a CUDA call fails
/// @throws base::UsageError if this build has no CUDA
[[nodiscard]] std::shared_ptr<BatchDevice> make_cuda_batch_device(CudaPlace const& place, CudaAllocate allocate = {});

}  // namespace headway::embedding
