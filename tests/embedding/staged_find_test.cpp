// SPDX-License-Identifier: Apache-2.0

// Lookups of a batch in stages (hash a group of keys, prefetch their buckets, compare), with the kernels of each
// instruction set that this processor has. The reference is KeyIndex::find() for one key after the other.
//
// A stripe is one of the 64 parts of a table's key index. The RowWord of a key is its row, or the lookups so far of a
// key that waits for one (a pending key).

#include "cpu/index/staged_find.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

class StagedFindTest : public testing::TestWithParam<KeyKernels> {};

/// Indices of all stripes, filled with segments of different loads, erased slots, pending keys, and ids that repeat in
/// several tables.
class FilledStripes {
 public:
  static constexpr std::uint32_t kTables = 3;

  explicit FilledStripes(std::size_t num_keys) {
    for (std::size_t stripe = 0; stripe < StripeMap::kCount; ++stripe) {
      indices_.push_back(std::make_unique<StripeIndices::Index>(pool_, StripeMap::kHashBits));
    }
    std::mt19937_64 random(5);
    for (std::uint32_t i = 1; i <= num_keys; ++i) {
      Key const key{.id = random() % num_keys, .table = i % kTables};
      keys_.push_back(key);
      index_of(key).find_or_insert(key, hash_of(key), [&] { return i % 7 == 0 ? pending_word(i) : RowWord{i}; });
    }
    for (std::size_t i = 0; i < num_keys; i += 5) index_of(keys_[i]).erase(keys_[i], hash_of(keys_[i]));
  }

  [[nodiscard]] RowWord find(Key key) { return index_of(key).find(key, hash_of(key)); }
  [[nodiscard]] StripeIndices all() const {
    return {map_, [this](std::size_t stripe) { return indices_[stripe].get(); }};
  }
  [[nodiscard]] std::vector<Key> const& keys() const { return keys_; }

 private:
  StripeIndices::Index& index_of(Key key) { return *indices_[map_.of(hash_of(key))]; }

  SegmentPool pool_;
  StripeMap map_;
  std::vector<std::unique_ptr<StripeIndices::Index>> indices_;
  std::vector<Key> keys_;
};

TEST_P(StagedFindTest, HashesAreThoseOfSingleKeys) {
  std::mt19937_64 random(1);
  // `low` gets the lower halves of the 128-bit hashes.
  std::vector<std::uint64_t> ids(KeyKernels::kGroup), low(KeyKernels::kGroup);
  std::vector<std::uint32_t> tables(ids.size());
  for (auto& id : ids) id = random();
  for (auto& table : tables) table = static_cast<std::uint32_t>(random());
  for (auto const* const some_tables : {static_cast<std::uint32_t const*>(nullptr), std::as_const(tables).data()}) {
    for (std::size_t const size : {std::size_t{0}, std::size_t{1}, std::size_t{13}, ids.size()}) {
      GetParam().hash({.ids = ids.data(), .tables = some_tables, .table = 0xfedcba98, .size = size}, low.data());
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(low[i], hash_of({.id = ids[i], .table = some_tables == nullptr ? 0xfedcba98 : tables[i]}).low);
      }
    }
  }
}

TEST_P(StagedFindTest, EachKeyIsVisitedOnceWithItsWord) {
  FilledStripes filled(200'000);
  std::mt19937_64 random(2);
  for (std::size_t const size : {1, 2, 255, 256, 257, 1'000, 2'048, 60'000}) {
    std::vector<std::uint64_t> ids(size);
    std::vector<std::uint32_t> tables(size);
    for (std::size_t i = 0; i < size; ++i) {
      Key const key = filled.keys()[random() % filled.keys().size()];
      ids[i] = random() % 4 == 0 ? random() : key.id;  // A quarter is most likely absent.
      tables[i] = key.table;
    }
    for (bool const have_tables : {true, false}) {
      Keys keys{.ids = ids, .table = 1};
      if (have_tables) keys.tables = tables;
      std::vector<int> num_visits(size);
      std::size_t const first = size / 3;
      StripeIndices const all = filled.all();
      StagedFind(keys, GetParam(), all).run(first, size, [&](std::size_t i, RowWord word) {
        ++num_visits[i];
        ASSERT_EQ(word, filled.find(keys[i])) << "key " << i << " of " << size;
      });
      for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(num_visits[i], i < first ? 0 : 1) << i << " of " << size;
    }
  }
}

std::vector<KeyKernels> all_kernels() { return {usable_key_kernels().begin(), usable_key_kernels().end()}; }

INSTANTIATE_TEST_SUITE_P(InstructionSets, StagedFindTest, testing::ValuesIn(all_kernels()),
                         [](auto const& each) { return std::string(each.param.instruction_set); });

}  // namespace
}  // namespace headway::embedding
