// SPDX-License-Identifier: Apache-2.0

// Lookups in a CPU table that change nothing: find, gather and pooled gather.
//
// Idea: threads take ranges of the batch. find() probes the key index for many keys at a time (staged_find.hpp).
// gather() copies the embeddings of kRowsAtOnce rows per call of a vector kernel, and prefetches those of the next
// call. gather_bags() sums embeddings into bags without a copy of each member.
//
// Invariants: a key without a row reads as the initial embedding that an insertion would give it.
// Complexity: O(keys), and O(keys * dim) for embeddings.

#include "cpu/rows/sum_vectors.hpp"
#include "cpu/table/cpu_table.hpp"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

namespace headway::embedding {

namespace {

constexpr std::size_t kRowsAtOnce = 32;  // Rows per call of a vector kernel.

/// Whether embeddings are written with non-temporal stores: so many that their reader would not find them in a cache.
bool goes_past_caches(std::span<float const> out, std::size_t dim) {
  constexpr std::size_t kStreamedBytes = std::size_t{16} << 20, kUnit = kernels::VectorKernels::kStreamBytes;
  bool const is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % kUnit == 0 && dim * sizeof(float) % kUnit == 0;
  return out.size_bytes() >= kStreamedBytes && is_aligned;
}

}  // namespace

/// Reads the embeddings of the members of bags. For one thread.
class CpuTable::BagReader {
 public:
  BagReader(CpuTable const& table, Keys const& keys, std::span<RowId const> rows,
            std::span<std::uint32_t const> inverse_indices)
      : table_(table), keys_(keys), rows_(rows), inverse_indices_(inverse_indices) {}

  /// Copies the embedding of member `i`.
  void copy(std::size_t i, std::span<float> out) {
    prefetch(i + kRowsAhead);
    std::uint32_t const index = inverse_indices_[i];
    if (auto const* const embedding = table_.find_embedding(rows_[index])) {
      std::copy_n(embedding, out.size(), out.begin());
    } else {
      table_.read_or_initialise(keys_, index, rows_[index], out);
    }
  }
  /// Copies the embeddings of the members from `first` to `end` to their rows of `out`.
  void copy_all(std::size_t first, std::size_t end, std::span<float> out) {
    std::size_t const dim = table_.options_.dim;
    for (std::size_t at = first; at < end; at += kRowsAtOnce) {
      std::size_t const count = std::min(kRowsAtOnce, end - at);
      table_.vector_kernels_.gather(dim, {.at = locate(at, count), .count = count}, {}, &out[at * dim]);
    }
  }
  /// (count) Embeddings of the members from `first` on, at most kRowsAtOnce. Valid until the next call.
  float const* const* locate(std::size_t first, std::size_t count) {
    std::size_t const dim = table_.options_.dim;
    for (std::size_t i = 0; i < count; ++i) {
      prefetch(first + i + kRowsAhead);
      std::uint32_t const index = inverse_indices_[first + i];
      embeddings_[i] = table_.find_embedding(rows_[index]);
      if (embeddings_[i] != nullptr) continue;
      scratch_.resize(kRowsAtOnce * dim);
      auto const values = std::span(scratch_).subspan(i * dim, dim);
      table_.read_or_initialise(keys_, index, rows_[index], values);
      embeddings_[i] = values.data();
    }
    return embeddings_.data();
  }

 private:
  void prefetch(std::size_t i) const {
    if (i < inverse_indices_.size() && table_.rows_.has(rows_[inverse_indices_[i]]))
      table_.rows_.prefetch(rows_[inverse_indices_[i]]);
  }

  CpuTable const& table_;
  Keys const& keys_;
  std::span<RowId const> rows_;
  std::span<std::uint32_t const> inverse_indices_;
  std::array<float const*, kRowsAtOnce> embeddings_;
  std::vector<float> scratch_;  ///< (kRowsAtOnce, dim) Embeddings of members without a float32 row.
};

void CpuTable::find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const {
  expect_one_each(keys, rows.size(), "rows");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::shared_lock const lock(mutex_);
  auto const all = indices();
  thread_pool_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    StagedFind(keys, key_kernels_, all).run(first, end, [&](std::size_t i, RowWord word) {
      rows[i] = row_of(word);
      if (rows[i] != RowId::kNone && is_expired(rows_.metadata(rows[i]))) rows[i] = RowId::kNone;
      if (!statuses.empty()) statuses[i] = rows[i] == RowId::kNone ? KeyStatus::kAbsent : KeyStatus::kFound;
    });
  });
}

void CpuTable::gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim;
  expect_values(keys, out.size(), dim, "out");
  std::shared_lock const lock(mutex_);
  auto const copy = goes_past_caches(out, dim) ? vector_kernels_.stream : vector_kernels_.gather;
  thread_pool_->in_ranges_of(keys.size(), dim * sizeof(float), [&](std::size_t first, std::size_t end) {
    std::array<float const*, kRowsAtOnce> embeddings, next;
    auto const locate = [&](std::size_t at) -> kernels::VectorKernels::Vectors {
      std::size_t const count = at < end ? std::min(kRowsAtOnce, end - at) : 0;
      for (std::size_t i = 0; i < count; ++i) next[i] = find_embedding(rows[at + i]);
      return {.at = next.data(), .count = count};
    };
    // Pipeline: each call copies a group of embeddings and prefetches those of the next group.
    copy(dim, {}, locate(first), nullptr);
    for (std::size_t at = first; at < end; at += kRowsAtOnce) {
      embeddings.swap(next);
      std::size_t const count = std::min(kRowsAtOnce, end - at);
      copy(dim, {.at = embeddings.data(), .count = count}, locate(at + count), &out[at * dim]);
      // Keys without a row, and rows in bfloat16, were skipped by `copy`.
      for (std::size_t i = 0; i < count; ++i) {
        if (embeddings[i] == nullptr) read_or_initialise(keys, at + i, rows[at + i], out.subspan((at + i) * dim, dim));
      }
    }
  });
}

float const* CpuTable::find_embedding(RowId row) const {
  if (row == RowId::kNone) return nullptr;
  expect_row(row);
  return rows_.find_embedding(row);
}

void CpuTable::read_or_initialise(Keys const& keys, std::size_t i, RowId row, std::span<float> out) const {
  if (row == RowId::kNone) {
    options_.initializer.fill(keys[i], out);
  } else {
    rows_.read(row, out);
  }
}

void CpuTable::gather_bags(Keys const& keys, std::span<RowId const> rows,
                           std::span<std::uint32_t const> inverse_indices, Bags const& bags,
                           std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim, num_bags = count_bags_on_host(inverse_indices.size(), bags);
  base::expects(out.size() == num_bags * dim, "out does not have a row for each bag");
  std::shared_lock const lock(mutex_);
  std::size_t const bag_bytes = (inverse_indices.size() / (num_bags + 1) + 1) * dim * sizeof(float);
  thread_pool_->in_ranges_of(num_bags, bag_bytes, [&](std::size_t first, std::size_t end) {
    BagReader reader(*this, keys, rows, inverse_indices);
    auto const locate = [&](std::size_t at, std::size_t count) -> SumTerms {
      return {.vectors = reader.locate(at, count),
              .weights = bags.weights.empty() ? nullptr : bags.weights.data() + at};
    };
    if (bags.offsets.empty() && bags.weights.empty()) return reader.copy_all(first, end, out);
    for (std::size_t bag = first; bag < end; ++bag) {
      auto const sum = out.subspan(bag * dim, dim);
      auto const begin = bags.offsets.empty() ? bag : static_cast<std::size_t>(bags.offsets[bag]);
      auto const after = bags.offsets.empty() ? bag + 1 : static_cast<std::size_t>(bags.offsets[bag + 1]);
      if (after == begin + 1 && bags.weights.empty()) {
        reader.copy(begin, sum);
        continue;
      }
      sum_vectors<kRowsAtOnce>(vector_kernels_, begin, after, locate, sum);
    }
  });
}

}  // namespace headway::embedding
