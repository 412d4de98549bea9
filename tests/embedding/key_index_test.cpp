// SPDX-License-Identifier: Apache-2.0

// Key index of the CPU, compared with std::map for both bucket layouts and both probe sequences.
//
// A RowWord is the 32-bit value of a key: its row, or its lookups so far. Keys lie in segments, open-addressing hash
// tables of cache-line buckets. A segment doubles as it fills; from a full size on it splits in two by a bit of the
// hash.

#include "cpu/index/key_index.hpp"

#include "headway/embedding/key.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace headway::embedding {
namespace {

using Oracle = std::map<std::pair<std::uint32_t, std::uint64_t>, RowWord>;

/// A kind of index, with the number of tables that its keys may have (a PackedBucket has no room for table ids).
template <class Bucket, class Probe, std::uint32_t num_tables>
struct Kind {
  using Index = KeyIndex<Bucket, Probe>;
  static constexpr std::uint32_t kNumTables = num_tables;
};

template <class Tested>
class KeyIndexTest : public testing::Test {
 protected:
  static RowWord find(typename Tested::Index const& index, Key key) { return index.find(key, hash_of(key)); }
  static RowWord put(typename Tested::Index& index, Key key, RowWord word) {
    auto const* const found = index.find_or_insert(key, hash_of(key), [&] { return word; });
    return found == nullptr ? RowWord::kEmpty : *found;
  }
  static void expect_same(typename Tested::Index& index, Oracle const& oracle) {
    EXPECT_EQ(index.size(), oracle.size());
    Oracle seen;
    index.for_each([&](Key key, RowWord& word) {
      EXPECT_TRUE(seen.try_emplace({key.table, key.id}, word).second) << "key " << key.id << " is there twice";
    });
    EXPECT_EQ(seen, oracle);
  }

  SegmentPool pool_;
};

using Kinds = testing::Types<Kind<WideBucket, OddStepProbe, 3>, Kind<WideBucket, LinearProbe, 3>,
                             Kind<PackedBucket, OddStepProbe, 1>, Kind<PackedBucket, LinearProbe, 1>>;
TYPED_TEST_SUITE(KeyIndexTest, Kinds);

TYPED_TEST(KeyIndexTest, EveryIdIsLegal) {
  typename TypeParam::Index index(this->pool_);
  std::uint32_t word = 1;
  for (std::uint32_t table = 0; table < TypeParam::kNumTables; ++table) {
    for (auto const id : {std::uint64_t{0}, std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max()}) {
      Key const key{.id = id, .table = table};
      EXPECT_EQ(this->find(index, key), RowWord::kEmpty);
      EXPECT_EQ(this->put(index, key, RowWord{word}), RowWord{word});
      EXPECT_EQ(this->put(index, key, RowWord{99}), RowWord{word});  // A second insertion keeps the word.
      EXPECT_EQ(this->find(index, key), RowWord{word++});
    }
  }
  EXPECT_EQ(index.size(), word - 1);
}

TYPED_TEST(KeyIndexTest, RandomHistoriesAreThoseOfAMap) {
  std::mt19937_64 random(7);
  for (std::uint64_t const num_ids : {50, 3'000}) {
    typename TypeParam::Index index(this->pool_, 0);
    Oracle oracle;
    for (std::uint32_t step = 1; step < 60'000; ++step) {
      Key const key{.id = random() % num_ids * 0x100000000,
                    .table = static_cast<std::uint32_t>(random() % TypeParam::kNumTables)};
      auto const at = oracle.find({key.table, key.id});
      RowWord const known = at == oracle.end() ? RowWord::kEmpty : at->second;
      switch (random() % 4) {
        case 0:
          ASSERT_EQ(this->find(index, key), known) << step;
          break;
        case 1:
          ASSERT_EQ(index.erase(key, hash_of(key)), known) << step;
          if (at != oracle.end()) oracle.erase(at);
          break;
        default:
          ASSERT_EQ(this->put(index, key, RowWord{step}), known == RowWord::kEmpty ? RowWord{step} : known) << step;
          oracle.try_emplace({key.table, key.id}, RowWord{step});
      }
    }
    this->expect_same(index, oracle);
    index.clear();
    this->expect_same(index, {});
  }
}

TYPED_TEST(KeyIndexTest, SegmentsDoubleAndSplitAndLoseNothing) {
  // Use the keys of one stripe (part of a table) only: hashes that begin with two zero bits.
  constexpr int kHashBits = 2;
  typename TypeParam::Index index(this->pool_, kHashBits);
  Oracle oracle;
  for (std::uint64_t id = 0; oracle.size() < 200'000; ++id) {
    Key const key{.id = id, .table = static_cast<std::uint32_t>(id % TypeParam::kNumTables)};
    if (hash_of(key).low >> (64 - kHashBits) != 0) continue;
    RowWord const word{static_cast<std::uint32_t>(oracle.size() + 1)};
    ASSERT_EQ(this->put(index, key, word), word);
    oracle.try_emplace({key.table, key.id}, word);
  }
  EXPECT_GE(index.num_segments(), 3U);
  EXPECT_GE(index.num_slots(), oracle.size());
  // A segment that has just doubled or split has a load of half its limit, 0.375 or more.
  EXPECT_LE(static_cast<double>(index.num_slots()), static_cast<double>(oracle.size()) / 0.36);
  this->expect_same(index, oracle);
  for (auto const& [key, word] : oracle) ASSERT_EQ(this->find(index, {.id = key.second, .table = key.first}), word);
}

TYPED_TEST(KeyIndexTest, ErasedSlotsDoNotMakeItGrow) {
  typename TypeParam::Index index(this->pool_);
  for (std::uint64_t id = 0; id < 200'000; ++id) {
    Key const key{.id = id};
    this->put(index, key, RowWord{1});
    if (id < 1'000) continue;
    Key const old{.id = id - 1'000};
    ASSERT_EQ(index.erase(old, hash_of(old)), RowWord{1});
    ASSERT_EQ(this->find(index, old), RowWord::kEmpty);
  }
  EXPECT_EQ(index.size(), 1'000U);
  // 512 buckets of 4 or 5 slots: rebuilds remove erased keys, so the index stops growing.
  EXPECT_LE(index.num_slots(), 2'560U);
}

TYPED_TEST(KeyIndexTest, SegmentsWithErasedSlotsSplitAndLoseNothing) {
  typename TypeParam::Index index(this->pool_);
  std::mt19937_64 random(9);
  Oracle oracle;
  for (std::uint32_t step = 1; step < 500'000; ++step) {
    Key const key{.id = random() % 400'000, .table = static_cast<std::uint32_t>(random() % TypeParam::kNumTables)};
    if (random() % 4 == 0) {
      index.erase(key, hash_of(key));
      oracle.erase({key.table, key.id});
    } else {
      this->put(index, key, RowWord{step});
      oracle.try_emplace({key.table, key.id}, RowWord{step});
    }
  }
  EXPECT_GE(index.num_segments(), 4U);
  this->expect_same(index, oracle);
}

TYPED_TEST(KeyIndexTest, AScanByPartsVisitsAllKeysThatStayThoughSegmentsSplitMeanwhile) {
  constexpr std::uint64_t kNumKeys = 60'000;
  for (std::uint64_t const num_more : {std::uint64_t{0}, std::uint64_t{300'000}}) {
    typename TypeParam::Index index(this->pool_);
    for (std::uint64_t id = 0; id < kNumKeys; ++id) this->put(index, {.id = id}, RowWord{1});
    typename TypeParam::Index::Cursor cursor;
    std::vector<int> num_visits(kNumKeys);
    for (std::uint64_t id = kNumKeys; !cursor.is_over;) {
      index.scan(cursor, 50, [&](Key key, RowWord) {
        if (key.id < kNumKeys) ++num_visits[key.id];
      });
      // Insertions between two parts of the scan split segments.
      for (int i = 0; i < 1'000 && id < kNumKeys + num_more; ++i) this->put(index, {.id = id++}, RowWord{2});
    }
    EXPECT_TRUE(std::ranges::all_of(num_visits, [](int visits) { return visits >= 1; }));
    if (num_more == 0) {
      EXPECT_TRUE(std::ranges::all_of(num_visits, [](int visits) { return visits == 1; }));
    }
  }
}

TYPED_TEST(KeyIndexTest, AScanEndsThoughTheIndexIsClearedMeanwhile) {
  constexpr std::uint64_t kNumKeys = 300'000;
  typename TypeParam::Index index(this->pool_);
  for (std::uint64_t id = 0; id < kNumKeys; ++id) this->put(index, {.id = id}, RowWord{1});
  typename TypeParam::Index::Cursor cursor;
  // Scans three quarters of the hash range: hashes below the prefix are done.
  while (cursor.prefix < std::uint64_t{3} << 62) index.scan(cursor, 1'000, [](Key, RowWord) {});
  index.clear();
  // Grows until the first segment has split: the cursor then points into the middle of a segment.
  for (std::uint64_t id = 0; index.num_segments() < 2; ++id) this->put(index, {.id = id}, RowWord{2});
  for (int i = 0; i < 1'000 && !cursor.is_over; ++i) index.scan(cursor, 1'000, [](Key, RowWord) {});
  EXPECT_TRUE(cursor.is_over);
}

TYPED_TEST(KeyIndexTest, AKeyWithoutAWordIsLeftOut) {
  typename TypeParam::Index index(this->pool_);
  for (std::uint64_t id = 0; id < 1'000; ++id) {
    EXPECT_EQ(this->put(index, {.id = id}, RowWord::kEmpty), RowWord::kEmpty);
    EXPECT_THROW(index.find_or_insert({.id = id}, hash_of({.id = id}), []() -> RowWord { throw std::bad_alloc(); }),
                 std::bad_alloc);
  }
  EXPECT_EQ(index.size(), 0U);
  EXPECT_EQ(this->find(index, {.id = 5}), RowWord::kEmpty);
}

TYPED_TEST(KeyIndexTest, MemoryOfSegmentsIsUsedAgain) {
  std::size_t most = 0;
  for (int round = 0; round < 3; ++round) {
    typename TypeParam::Index index(this->pool_);
    for (std::uint64_t id = 0; id < 300'000; ++id) this->put(index, {.id = id}, RowWord{1});
    if (round == 0) most = this->pool_.num_bytes();
  }
  // Full segments wait for reuse, so later rounds take no more memory; smaller ones were freed.
  EXPECT_EQ(this->pool_.num_bytes(), most - (most % SegmentPool::kFullBytes));
}

}  // namespace
}  // namespace headway::embedding
