// SPDX-License-Identifier: Apache-2.0

// Batches in host memory: a BatchDevice over the deduplicator and the tables of the CPU.
//
// Ownership: the deduplicator gives vectors. One UniqueKeys on the heap owns those of a batch, and all blocks of the
// batch share it, so nothing is copied.

#include "headway/base/status.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/routing.hpp"
#include "headway/kernels/vector_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <numeric>

namespace headway::embedding {

namespace {

constexpr std::align_val_t kAlignment{64};

template <class T>
Block<T> block_of(std::vector<T> const& values, std::shared_ptr<void const> owner) {
  return {std::span(const_cast<T*>(values.data()), values.size()), std::move(owner)};
}

UniqueBlocks blocks_of(UniqueKeys keys, bool are_unique) {
  auto unique = std::make_shared<UniqueKeys const>(std::move(keys));
  return {.ids = block_of(unique->ids, unique),
          .tables = block_of(unique->tables, unique),
          .counts = block_of(unique->counts, unique),
          .table = unique->table,
          .inverse_indices = block_of(unique->inverse_indices, unique),
          .csr_indices = block_of(unique->csr_indices, unique),
          .csr_offsets = block_of(unique->csr_offsets, unique),
          .size = unique->size(),
          .are_unique = are_unique,
          .on_host = unique};
}

/// Freed blocks for the next batch, by size. A step frees and allocates the same sizes again. Without the pool malloc()
/// would give their pages back to the system each time, and the faults of new pages take longer than the lookup.
///
/// Sizes are rounded up to an eighth of a power of two. A freed block is kept only if it, the other free blocks and
/// those in use together take no more than the most that was in use at once.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool() = default;
  BlockPool(BlockPool const&) = delete;
  BlockPool& operator=(BlockPool const&) = delete;
  ~BlockPool() {
    for (auto const& [size, blocks] : free_) {
      for (void* const block : blocks) ::operator delete(block, kAlignment);
    }
  }

  [[nodiscard]] std::shared_ptr<void> allocate(std::size_t num_bytes) {
    std::size_t const step = std::max(std::bit_ceil(num_bytes) / 16, kLeastBytes);
    std::size_t const size = (num_bytes + step - 1) / step * step;
    return {take(size), [pool = shared_from_this(), size](void* block) { pool->give_back(block, size); }};
  }

 private:
  static constexpr std::size_t kLeastBytes = 64;

  void* take(std::size_t size) {
    std::lock_guard const lock(mutex_);
    auto& blocks = free_[size];
    void* block = nullptr;
    if (blocks.empty()) {
      blocks.reserve(blocks.capacity() + 1);  // So give_back() does not allocate.
      block = ::operator new(size, kAlignment);
    } else {
      block = blocks.back();
      blocks.pop_back();
      free_bytes_ -= size;
    }
    used_bytes_ += size;
    most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
    return block;
  }

  void give_back(void* block, std::size_t size) {
    std::lock_guard const lock(mutex_);
    used_bytes_ -= size;
    auto& blocks = free_[size];
    if (used_bytes_ + free_bytes_ + size > most_used_bytes_ || blocks.size() == blocks.capacity()) {
      return ::operator delete(block, kAlignment);
    }
    blocks.push_back(block);
    free_bytes_ += size;
  }

  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;  ///< Blocks by size.
  std::size_t used_bytes_ = 0, most_used_bytes_ = 0, free_bytes_ = 0;
};

class HostNumbers final : public HostCopy {
 public:
  explicit HostNumbers(Block<std::int64_t> numbers) : numbers_(std::move(numbers)) {}
  [[nodiscard]] std::span<std::int64_t const> wait() override { return numbers_.span; }

 private:
  Block<std::int64_t> numbers_;
};

class HostBatchDevice final : public BatchDevice {
 public:
  explicit HostBatchDevice(std::shared_ptr<base::ThreadPool> thread_pool)
      : thread_pool_(std::move(thread_pool)), deduplicator_(make_cpu_deduplicator(thread_pool_)) {}

  [[nodiscard]] bool is_host() const override { return true; }
  [[nodiscard]] std::shared_ptr<void> allocate(std::size_t num_bytes) override { return pool_->allocate(num_bytes); }
  [[nodiscard]] std::unique_ptr<Table> make_table(TableOptions const& options) override {
    auto with_pool = options;
    if (with_pool.thread_pool == nullptr) with_pool.thread_pool = thread_pool_;
    return make_cpu_table(with_pool);
  }

  void join(std::span<Feature const> features, JoinedFeatures const& out) override { join_features(features, out); }
  [[nodiscard]] UniqueBlocks deduplicate(Keys const& keys) override {
    return blocks_of(deduplicator_->deduplicate(keys), true);
  }
  [[nodiscard]] UniqueBlocks from_unique(Keys const& keys) override {
    return blocks_of(embedding::from_unique(keys), keys.are_unique);
  }
  [[nodiscard]] std::pair<UniqueBlocks, Block<std::int64_t>> sort_by_owner(UniqueBlocks const& unique,
                                                                           std::uint32_t num_ranks) override {
    auto by_owner = std::make_shared<Route>(route(unique.keys(), num_ranks));
    return {blocks_of(reorder(*unique.on_host, by_owner->order), unique.are_unique),
            block_of(by_owner->counts, by_owner)};
  }
  void expand(UniqueBlocks const& unique, Bags const& bags, std::size_t /*dim*/, std::span<float const> values,
              std::span<float> out) override {
    deduplicator_->expand(*unique.on_host, bags, values, out);
  }
  void reduce(UniqueBlocks const& unique, Bags const& bags, std::size_t /*dim*/, std::span<float const> values,
              std::span<float> sums) override {
    deduplicator_->reduce(*unique.on_host, bags, values, sums);
  }

  void copy(std::span<CopyPiece const> pieces) override {
    for (auto const& [to, from, num_bytes] : pieces) {
      if (num_bytes > 0) std::memcpy(to, from, num_bytes);
    }
  }
  void encode(std::span<EncodePiece const> pieces) override {
    for (auto const& [keys, words] : pieces) {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        words[2 * i] = keys.ids[i];
        words[2 * i + 1] = keys[i].table | std::uint64_t{keys.counts[i]} << 32;
      }
    }
  }
  void decode(std::span<DecodePiece const> pieces) override {
    for (auto const& each : pieces) {
      for (std::size_t i = 0; i < each.num_keys; ++i) {
        std::uint64_t const id = each.words[2 * i], rest = each.words[2 * i + 1];
        each.ids[i] = id;
        each.tables[i] = static_cast<std::uint32_t>(rest);
        each.counts[i] = static_cast<std::uint32_t>(rest >> 32);
      }
    }
  }
  void fill(std::span<float> values, float value) override { std::ranges::fill(values, value); }
  void write(std::span<float const> on_host, std::span<float> to) override { std::ranges::copy(on_host, to.begin()); }
  [[nodiscard]] std::vector<float> read(std::span<float const> values) override {
    return {values.begin(), values.end()};
  }
  [[nodiscard]] std::vector<double> read(std::span<double const> values) override {
    return {values.begin(), values.end()};
  }
  [[nodiscard]] std::vector<std::uint64_t> read(std::span<std::uint64_t const> values) override {
    return {values.begin(), values.end()};
  }
  void add_sizes(std::span<SizeTerm const> terms) override {
    for (auto const& [size, total] : terms) *total += *size;
  }
  [[nodiscard]] std::unique_ptr<HostCopy> fetch(Block<std::int64_t> const& source,
                                                std::function<void(CudaStream)> const& /*wait*/) override {
    return std::make_unique<HostNumbers>(source);
  }
  void interleave(std::span<std::int64_t const* const> columns, std::size_t size, std::int64_t* out) override {
    for (std::size_t i = 0; i < size; ++i) {
      for (auto const* const column : columns) *out++ = column[i];
    }
  }

  void count_refused(std::span<KeyStatus const> statuses, float* result) override {
    *result = static_cast<float>(std::ranges::count(statuses, KeyStatus::kNoRoom));
  }
  void mask_weights(std::span<RowId const> rows, std::span<std::uint32_t const> inverse_indices,
                    std::span<float const> weights, std::span<float> out) override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      float const known = rows[inverse_indices[i]] == RowId::kNone ? 0 : 1;
      out[i] = weights.empty() ? known : weights[i] * known;
    }
  }
  void mask_rows(std::span<RowId const> rows, std::size_t dim, std::span<float> values) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == RowId::kNone) std::ranges::fill(values.subspan(i * dim, dim), 0.0F);
    }
  }

  void scale(std::span<float> values, float factor) override {
    for (float& value : values) value *= factor;
  }
  void divide(std::span<float> values, float divisor) override {
    for (float& value : values) value /= divisor;
  }
  void scale_by(std::span<float> values, float const* factor) override { scale(values, *factor); }
  void mark_finite(std::span<float const> values, float* mark) override {
    bool const are_finite = kernels::fastest_vector_kernels().are_finite(values.size(), values.data());
    *mark = are_finite ? 1 : std::numeric_limits<float>::quiet_NaN();
  }
  void add_squares(KeyValues const& values, std::size_t /*dim*/, double* sum) override {
    for (float const value : values.values) *sum += static_cast<double>(value) * value;
  }
  void clear(std::span<std::byte> memory) override { std::ranges::fill(memory, std::byte{0}); }
  [[nodiscard]] KeyValueBlocks concatenate(std::span<KeyValues const> pieces, std::size_t dim) override {
    std::size_t num_keys = 0;
    for (auto const& each : pieces) num_keys += each.keys.size();
    KeyValueBlocks all{.ids = block<std::uint64_t>(num_keys),
                       .tables = block<std::uint32_t>(num_keys),
                       .values = block<float>(num_keys * dim)};
    std::size_t key = 0;
    for (auto const& [keys, values] : pieces) {
      std::ranges::copy(values, all.values.span.begin() + static_cast<std::ptrdiff_t>(key * dim));
      for (std::size_t i = 0; i < keys.size(); ++i, ++key) {
        all.ids.span[key] = keys.ids[i];
        all.tables.span[key] = keys[i].table;
      }
    }
    return all;
  }
  [[nodiscard]] KeyValueBlocks select_table(KeyValues const& values, std::span<RowId const> rows, std::size_t dim,
                                            std::uint32_t table) override {
    auto const& keys = values.keys;
    KeyValueBlocks chosen{.ids = block<std::uint64_t>(keys.size()),
                          .tables = block<std::uint32_t>(keys.size()),
                          .values = block<float>(keys.size() * dim),
                          .rows = block<RowId>(keys.size())};
    std::size_t count = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].table != table) continue;
      chosen.ids.span[count] = keys.ids[i];
      chosen.tables.span[count] = table;
      chosen.rows.span[count] = rows[i];
      std::ranges::copy(values.values.subspan(i * dim, dim),
                        chosen.values.span.begin() + static_cast<std::ptrdiff_t>(count * dim));
      ++count;
    }
    return {.ids = chosen.ids.first(count),
            .tables = chosen.tables.first(count),
            .values = chosen.values.first(count * dim),
            .rows = chosen.rows.first(count)};
  }
  [[nodiscard]] Block<std::uint32_t> count_if_any(Keys const& /*keys*/, std::span<float const> /*flags*/,
                                                  std::size_t /*first*/, std::size_t /*stride*/) override {
    throw base::UsageError("the host reads flags itself");
  }

  void mark_shared(std::span<std::uint32_t const> inverse_indices, std::size_t num_first,
                   std::span<float> marks) override {
    std::vector<unsigned char> sides(inverse_indices.size());  // By unique key: 1 has positions first, 2 behind them.
    for (std::size_t i = 0; i < inverse_indices.size(); ++i) sides[inverse_indices[i]] |= i < num_first ? 1 : 2;
    for (std::size_t i = 0; i < marks.size(); ++i) marks[i] = sides[inverse_indices[i]] == 3 ? 1 : 0;
  }
  void mark_absent(std::span<RowId const> rows, std::span<float> marks) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == RowId::kNone) marks[i] = 1;
    }
  }
  [[nodiscard]] SplitPositions split(std::span<float const> marks, std::span<std::size_t const> sizes) override {
    SplitPositions all{.marked = block<std::uint32_t>(marks.size()),
                       .others = block<std::uint32_t>(marks.size()),
                       .counts = block<std::int64_t>(2 * sizes.size())};
    std::size_t num_marked = 0, num_others = 0, position = 0;
    for (std::size_t segment = 0; segment < sizes.size(); ++segment) {
      std::size_t const marked_before = num_marked, others_before = num_others;
      for (std::size_t const end = position + sizes[segment]; position < end; ++position) {
        if (marks[position] > 0) all.marked.span[num_marked++] = static_cast<std::uint32_t>(position);
        if (marks[position] == 0) all.others.span[num_others++] = static_cast<std::uint32_t>(position);
      }
      all.counts.span[segment] = static_cast<std::int64_t>(num_marked - marked_before);
      all.counts.span[sizes.size() + segment] = static_cast<std::int64_t>(num_others - others_before);
    }
    return all;
  }
  void gather_rows(std::span<float const> rows, std::size_t width, std::span<std::uint32_t const> positions,
                   std::span<float> out) override {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(&out[i * width], &rows[positions[i] * width], width * sizeof(float));
    }
  }
  void scatter_rows(std::span<float const> rows, std::size_t width, std::span<std::uint32_t const> positions,
                    std::span<float> out) override {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(&out[positions[i] * width], &rows[i * width], width * sizeof(float));
    }
  }
  void select_keys(Keys const& keys, std::span<std::uint32_t const> positions, KeyColumns const& out) override {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      out.ids[i] = keys.ids[positions[i]];
      out.tables[i] = keys[positions[i]].table;
      out.counts[i] = keys.counts.empty() ? 1 : keys.counts[positions[i]];
    }
  }

  [[nodiscard]] std::shared_ptr<void> record() override { return nullptr; }
  void wait_for(std::shared_ptr<void> const& /*point*/) override {}

 private:
  std::shared_ptr<base::ThreadPool> thread_pool_;
  std::unique_ptr<Deduplicator> deduplicator_;
  std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>();
};

}  // namespace

std::shared_ptr<BatchDevice> make_host_batch_device(std::shared_ptr<base::ThreadPool> thread_pool) {
  return std::make_shared<HostBatchDevice>(std::move(thread_pool));
}

}  // namespace headway::embedding
