// SPDX-License-Identifier: Apache-2.0

// Fixture of the conformance tests of tables: each test runs on the CPU with one thread and with three, and on a CUDA
// device if there is one. Initial embeddings are a fixed function of id and column, so a test can compute what a
// table must return.

#pragma once

#include "headway/embedding/table.hpp"

#if HEADWAY_TEST_CUDA_TABLES
#include "cuda/table_from_host.hpp"
#endif

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {

inline constexpr std::size_t kDim = 5;

inline constexpr std::array kAllOptimizers{kernels::OptimizerKind::kSgd, kernels::OptimizerKind::kAdagrad,
                                           kernels::OptimizerKind::kRowWiseAdagrad, kernels::OptimizerKind::kAdam,
                                           kernels::OptimizerKind::kRowWiseAdam};

/// Makes tables of one kind. All of them take keys and values in host memory.
struct Maker {
  std::string name;
  int num_threads;  ///< Threads of a CPU table; 0: a CUDA table.

  [[nodiscard]] std::unique_ptr<Table> make(TableOptions options) const {
#if HEADWAY_TEST_CUDA_TABLES
    if (num_threads == 0) return std::make_unique<TableFromHost>(options);
#endif
    options.thread_pool = std::make_shared<base::ThreadPool>(num_threads);
    return make_cpu_table(options);
  }
};

/// Default options of the tests: kDim columns, initial values in [-1, 1).
inline TableOptions options_of(std::size_t max_rows = TableOptions::kUnlimited) {
  return {.dim = kDim, .initializer = Initializer::uniform(-1, 1, 11), .max_rows = max_rows};
}

/// Table and id of a key.
using Id = std::pair<std::uint32_t, std::uint64_t>;
using Vector = std::vector<float>;

/// Keys of a batch, with the rows, statuses and embeddings that a table returns for them.
struct Batch {
  std::vector<std::uint64_t> ids{};
  std::vector<std::uint32_t> tables{};
  std::vector<std::uint32_t> counts{};  ///< Lookups that each key stands for; empty: one each.
  std::vector<RowId> rows{};
  std::vector<KeyStatus> statuses{};
  Vector embeddings{};  ///< (keys, dim)
  std::size_t dim = kDim;

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .counts = counts}; }
  [[nodiscard]] Id id(std::size_t i) const { return {tables[i], ids[i]}; }
  [[nodiscard]] Vector embedding(std::size_t i) const {
    auto const begin = embeddings.begin() + static_cast<std::ptrdiff_t>(i * dim);
    return {begin, begin + static_cast<std::ptrdiff_t>(dim)};
  }
  /// Looks the keys up and gathers their embeddings.
  void find(Table const& table) {
    make_room();
    table.find(keys(), rows, statuses);
    table.gather(keys(), rows, embeddings);
  }
  void find_or_insert(Table& table) {
    make_room();
    table.find_or_insert(keys(), rows, statuses);
    table.gather(keys(), rows, embeddings);
  }
  /// Sizes the results, and fills them with values that a table must overwrite.
  void make_room() {
    rows.assign(ids.size(), RowId::kNone);
    statuses.assign(ids.size(), KeyStatus::kNoRoom);
    embeddings.assign(ids.size() * dim, -99);
  }
};

/// Generator whose numbers differ in each repetition with --gtest_shuffle and are the same in all runs without it.
inline std::mt19937_64 random_source(std::uint64_t salt) {
  return std::mt19937_64(salt + (static_cast<std::uint64_t>(testing::UnitTest::GetInstance()->random_seed()) << 32));
}

/// Keys of tables 0 to 2, with `num_ids` different ids; the factor spreads these over 64 bits.
inline Batch random_batch(std::mt19937_64& random, std::size_t size, std::uint64_t num_ids) {
  Batch batch;
  for (std::size_t i = 0; i < size; ++i) {
    batch.ids.push_back(random() % num_ids * 0x1000100010001);
    batch.tables.push_back(static_cast<std::uint32_t>(random() % 3));
  }
  return batch;
}

/// These ids of table 0.
inline Batch batch_of(std::vector<std::uint64_t> ids) {
  Batch batch{.ids = std::move(ids)};
  batch.tables.assign(batch.ids.size(), 0);
  return batch;
}

/// Ids [first, first + size) of table 0.
inline Batch batch_from(std::uint64_t first, std::size_t size) {
  std::vector<std::uint64_t> ids(size);
  std::iota(ids.begin(), ids.end(), first);
  return batch_of(std::move(ids));
}

inline Vector initial_embedding(Id id) {
  Vector embedding(kDim);
  options_of().initializer.fill({.id = id.second, .table = id.first}, embedding);
  return embedding;
}

/// Fixture of the conformance tests: one instance for each kind of table.
class TableTest : public testing::TestWithParam<Maker> {
#if HEADWAY_TEST_CUDA_TABLES
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "this host has no CUDA device";
  }
#endif
};

#if HEADWAY_TEST_CUDA_TABLES
#define INSTANTIATE_TABLES(fixture)                                            \
  INSTANTIATE_TEST_SUITE_P(Tables, fixture, testing::Values(Maker{"cuda", 0}), \
                           [](auto const& maker) { return maker.param.name; })
#else
#define INSTANTIATE_TABLES(fixture)                                                                      \
  INSTANTIATE_TEST_SUITE_P(Tables, fixture, testing::Values(Maker{"cpu", 1}, Maker{"cpu_3_threads", 3}), \
                           [](auto const& maker) { return maker.param.name; })
#endif

}  // namespace headway::embedding
