// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <vector>

namespace headway::benchmarks {

/// Allocator that asks for huge pages (MADV_HUGEPAGE).
template <class T>
struct HugePageAllocator {
  using value_type = T;
  static constexpr std::align_val_t kPage{std::size_t{2} << 20};

  HugePageAllocator() = default;
  template <class Other>
  explicit HugePageAllocator(HugePageAllocator<Other> const& /*other*/) {}
  [[nodiscard]] T* allocate(std::size_t count) {
    void* const memory = ::operator new(count * sizeof(T), kPage);
    madvise(memory, count * sizeof(T), MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t /*count*/) { ::operator delete(memory, kPage); }
  friend bool operator==(HugePageAllocator const&, HugePageAllocator const&) { return true; }
};

/// Lower bound for the cost of an embedding table: open addressing with linear probing and batched prefetch. Lookups
/// may run on several threads, insertion on one. It cannot erase, evict, count lookups or store id 0, and growth copies
/// everything.
class FlatTable {
 public:
  explicit FlatTable(std::size_t dim) : dim_(dim), slots_(kFirstSlots) {}

  /// Inserts new ids with their embeddings; ids that are already in the table are ignored. `embeddings`: (ids, dim).
  void insert(std::span<std::uint64_t const> ids, std::span<float const> embeddings) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (2 * num_rows_ >= slots_.size()) grow();
      auto& slot = slots_[slot_of(ids[i], hash_of(ids[i]))];
      if (slot.id != 0) continue;
      slot = {.id = ids[i], .row = num_rows_++};
      auto const embedding = embeddings.subspan(i * dim_, dim_);
      values_.insert(values_.end(), embedding.begin(), embedding.end());
    }
  }
  /// Finds the rows of ids, all of which must be in the table.
  void find_rows(std::span<std::uint64_t const> ids, std::span<std::uint32_t> rows) const {
    in_groups(
        ids, [&](std::size_t i, Slot const& slot) { rows[i] = slot.row; }, [](std::size_t, std::size_t) {});
  }
  /// Copies the embeddings of ids, all of which must be in the table. `out`: (ids, dim).
  void find_embeddings(std::span<std::uint64_t const> ids, std::span<float> out) const {
    std::array<float const*, kGroup> embeddings;
    in_groups(
        ids,
        [&](std::size_t i, Slot const& slot) {
          embeddings[i % kGroup] = &values_[slot.row * dim_];
          for (std::size_t at = 0; at < dim_; at += kValuesPerLine) __builtin_prefetch(embeddings[i % kGroup] + at);
        },
        [&](std::size_t first, std::size_t end) {
          for (std::size_t i = first; i < end; ++i) {
            std::memcpy(&out[i * dim_], embeddings[i % kGroup], dim_ * sizeof(float));
          }
        });
  }

 private:
  struct Slot {
    std::uint64_t id = 0;  ///< 0: the slot is empty.
    std::uint64_t row = 0;
  };
  static constexpr std::size_t kFirstSlots = 1024;
  static constexpr std::size_t kGroup = 32;          ///< Ids whose slots are prefetched together.
  static constexpr std::size_t kValuesPerLine = 16;  ///< Floats per cache line.

  /// The finaliser of MurmurHash3.
  static std::uint64_t hash_of(std::uint64_t id) {
    id = (id ^ (id >> 33)) * 0xff51afd7ed558ccd;
    id = (id ^ (id >> 33)) * 0xc4ceb9fe1a85ec53;
    return id ^ (id >> 33);
  }
  [[nodiscard]] std::size_t slot_of(std::uint64_t id, std::uint64_t hash) const {
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at].id != id && slots_[at].id != 0) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  /// Calls `visit(i, slot)` for each id after prefetching the slots of its group, and `finish(first, end)` per group.
  template <class Visit, class Finish>
  void in_groups(std::span<std::uint64_t const> ids, Visit visit, Finish finish) const {
    std::array<std::uint64_t, kGroup> hashes;
    for (std::size_t first = 0; first < ids.size(); first += kGroup) {
      std::size_t const end = std::min(first + kGroup, ids.size());
      for (std::size_t i = first; i < end; ++i) {
        hashes[i % kGroup] = hash_of(ids[i]);
        __builtin_prefetch(&slots_[hashes[i % kGroup] & (slots_.size() - 1)]);
      }
      for (std::size_t i = first; i < end; ++i) visit(i, slots_[slot_of(ids[i], hashes[i % kGroup])]);
      finish(first, end);
    }
  }
  void grow() {
    std::vector<Slot, HugePageAllocator<Slot>> before(2 * slots_.size());
    before.swap(slots_);
    for (auto const& slot : before) {
      if (slot.id != 0) slots_[slot_of(slot.id, hash_of(slot.id))] = slot;
    }
  }

  std::size_t dim_;
  std::uint64_t num_rows_ = 0;
  std::vector<Slot, HugePageAllocator<Slot>> slots_;
  std::vector<float, HugePageAllocator<float>> values_;
};

}  // namespace headway::benchmarks
