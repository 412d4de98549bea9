// SPDX-License-Identifier: Apache-2.0

// Stress test of tables: random histories of operations, each compared with an oracle.
//
// Idea: a history draws the options of a table (limits, policy, precision, optimizer), then 50 to 199 operations with
// random batches. Each operation runs on the table and on Oracle. After each one, statuses, embeddings, sizes and
// statistics must agree; now and then, and at the end, all records and pending keys (those without a row yet) too. Rows
// must not move within a generation (a number that a table increases when rows may have moved or gone), and no two keys
// may share a row. Records are listed by virtual buckets: ranges of key hashes. An operation of its own ("move in
// parts") continues with a new table that imported everything in parts, as after a restart on another number of ranks.
//
// Example: a history has max_rows 40 and LRU. A find_or_insert reports kNoRoom where the oracle inserts: the program
//   prints seed, options and operation, and a command line that plays the same history again.
//
// Invariants: the seed and the largest number of threads decide the whole history. All values are compared bit by bit:
//   rates, betas and gradients are powers of two, so fused multiply-adds give the same results.
// Complexity: up to 30,000 ids in each of 3 tables and batches of up to 6,000 keys; the oracle's sorts dominate.

#pragma once

#include "table_fixture.hpp"
#include "table_oracle.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>

namespace headway::embedding {

/// Thrown when a table and the oracle disagree; the text names the first different value.
class Difference : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One random history of a table and its oracle.
class TableHistory {
 public:
  /// @param most_threads largest number of threads of a table; ignored for CUDA tables
  TableHistory(std::uint64_t seed, int most_threads);

  /// Plays the whole history. @throws Difference at the first disagreement
  void play();
  [[nodiscard]] std::uint64_t num_operations() const { return num_operations_; }
  /// Text with the present operation and the options.
  [[nodiscard]] std::string describe() const;

 private:
  /// Values drawn once, for the whole history.
  struct Plan {
    std::uint64_t num_ids = 0;
    std::uint32_t num_tables = 0, first_table = 0;  ///< Keys are of tables first_table, first_table + 1, ...
    std::size_t most_keys = 0;                      ///< Upper bound of a batch's size (exclusive).
    std::size_t num_operations = 0;
    TableOptions options{};
    double learning_rate = 0;
  };

  /// Draws one operation by weight and plays it.
  void play_one();
  void begin_step();
  void find();
  void find_or_insert();
  void insert_or_assign();
  void update();
  void erase();
  void evict();
  void halve_counts();
  void clear();
  void import_records();
  void import_pending();
  void evict_beyond_limit();
  /// Continues with a new table that imports records and pending keys in parts, as other ranks would.
  void move_in_parts();

  void compare_sizes() const;
  void compare_contents() const;
  void compare_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  Records compare_records(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  /// Compares rows and embeddings of keys that were looked up or inserted, given the statuses in `batch`.
  void compare_rows_and_embeddings(Batch const& batch, Keys const& keys);
  /// Forgets known rows, as they are valid within one generation only.
  void forget_rows();

  [[nodiscard]] std::uint64_t below(std::uint64_t end) { return random_() % end; }
  [[nodiscard]] bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  [[nodiscard]] T one_of(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }
  [[nodiscard]] Plan draw_plan();
  void draw_optimizer(Plan& plan);
  [[nodiscard]] std::unique_ptr<Table> make_table();
  /// Lookups of a key: mostly 1 to 3, at times 0, rarely so many that counts saturate.
  [[nodiscard]] std::uint32_t draw_count();
  [[nodiscard]] Batch draw_batch();
  [[nodiscard]] Batch draw_different_keys();
  /// Integers in [least, end), as floats.
  [[nodiscard]] Vector draw_values(std::size_t size, int least, int end);
  /// Powers of two, so that optimizers give the same bits with and without fused multiply-adds.
  [[nodiscard]] Vector draw_gradients(std::size_t size);
  [[nodiscard]] Keys keys_of(Batch const& batch) const;

  std::mt19937_64 random_;
  int most_threads_;
  Plan plan_;
  std::unique_ptr<Table> table_;
  Oracle oracle_;
  std::uint32_t step_ = 0, oldest_in_use_ = 0;  ///< Rows looked up in step oldest_in_use_ or later must stay.
  std::uint64_t num_updates_ = 0, num_operations_ = 0;
  char const* operation_ = "the first";
  std::uint64_t generation_ = 0;
  std::map<Id, RowId> rows_;    ///< Rows found in this generation.
  std::map<RowId, Id> owners_;  ///< Inverse of rows_.
};

}  // namespace headway::embedding
