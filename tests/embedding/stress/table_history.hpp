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

/// A table and the rules disagree.
class Difference : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Random operations on a table of random options, each compared with what an Oracle says. A seed decides everything.
class TableHistory {
 public:
  /// @param most_workers that a table may have; without meaning on a device
  TableHistory(std::uint64_t seed, int most_workers);

  /// @throws Difference
  void play();
  [[nodiscard]] std::uint64_t num_operations() const { return num_operations_; }
  /// The options, and the operation at which it is.
  [[nodiscard]] std::string describe() const;

 private:
  /// What is drawn once, for the whole history.
  struct Plan {
    std::uint64_t num_ids = 0;
    std::uint32_t num_tables = 0, first_table = 0;
    std::size_t most_keys = 0;  ///< Of a batch.
    std::size_t num_operations = 0;
    TableOptions options{};
    double learning_rate = 0;
  };

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
  /// Continues with a copy, which gets everything in parts as other ranks would.
  void move_in_parts();

  void compare_sizes() const;
  void compare_contents() const;
  void compare_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  Records compare_records(std::uint32_t first_bucket, std::uint32_t end_bucket) const;
  /// Of keys that were found, or inserted, with the statuses that were said of them.
  void compare_rows_and_vectors(Batch const& batch, Keys const& keys);
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
  [[nodiscard]] std::uint32_t draw_count();
  [[nodiscard]] Batch draw_batch();
  [[nodiscard]] Batch draw_different_keys();
  /// Small integers.
  [[nodiscard]] Vector draw_values(std::size_t size, int least, int end);
  /// Of which what optimizers compute is the same however multiplications and additions are fused.
  [[nodiscard]] Vector draw_gradients(std::size_t size);
  [[nodiscard]] Keys keys_of(Batch const& batch) const;

  std::mt19937_64 random_;
  int most_workers_;
  Plan plan_;
  std::unique_ptr<Table> table_;
  Oracle oracle_;
  std::uint32_t step_ = 0, oldest_in_use_ = 0;
  std::uint64_t num_updates_ = 0, num_operations_ = 0;
  char const* operation_ = "the first";
  std::uint64_t generation_ = 0;
  std::map<Id, RowId> rows_;  ///< That were found in this generation.
  std::map<RowId, Id> owners_;
};

}  // namespace headway::embedding
