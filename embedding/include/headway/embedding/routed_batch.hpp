// SPDX-License-Identifier: Apache-2.0

// The asking side of a lookup by messages: features become unique keys for owners, and the owners' rows become
// embeddings of bags. PairwiseLookup asks ranks this way, and an embedding worker of hybrid training asks servers.
//
// Example: 2 owners, bags [5, 6] and [5]. The unique keys are 5 and 6. Owner 0 has 6 and owner 1 has 5, so the order is
// 6, 5. With rows r6 and r5, expand() writes r5 + r6 and r5. reduce() of gradients g0 and g1 gives g0 for 6, and
// g0 + g1 for 5.

#pragma once

#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// A batch of features in host memory. `merged` is the index of a merged table (tables of equal options that share
/// storage). Shapes: U unique keys of a merged table, in the order of their owners.
class RoutedBatch {
 public:
  /// Removes duplicates, and sorts the keys by owner. The features may be freed afterwards.
  /// @param merged_of merged table of each table id
  /// @param dims (merged tables) columns of an embedding
  /// @throws base::UsageError if lengths do not add up to the ids, or a feature names a table that is not there
  RoutedBatch(std::shared_ptr<BatchDevice> device, std::span<Feature const> features,
              std::map<std::uint32_t, std::size_t> const& merged_of, std::span<std::size_t const> dims,
              std::uint32_t num_owners);
  ~RoutedBatch();
  RoutedBatch(RoutedBatch&&) noexcept;
  RoutedBatch& operator=(RoutedBatch&&) noexcept;

  [[nodiscard]] std::size_t num_merged() const { return dims_.size(); }
  /// Keys for an owner, with the number of lookups that each stands for. They are views of this object's memory.
  [[nodiscard]] Keys keys(std::size_t merged, std::size_t owner) const;
  [[nodiscard]] std::size_t num_bags(std::size_t merged) const;
  [[nodiscard]] std::size_t dim(std::size_t merged) const { return dims_[merged]; }

  /// (keys of the owner, dim) Where the rows of an owner are written, before expand().
  [[nodiscard]] std::span<float> rows(std::size_t merged, std::size_t owner);
  /// Writes the embeddings of all bags, in the order of the features: the weighted sum or mean of each list, or one
  /// embedding per id. @param out (bags, dim)
  void expand(std::size_t merged, std::span<float> out) const;
  /// (bags) Bags of one id of weight 1 have equal embeddings if they have the same key; so do empty bags. Such bags
  /// have the same index. Indices count distinct bags in the order of their first ones. Empty if all bags are distinct.
  [[nodiscard]] std::vector<std::uint32_t> distinct_bags(std::size_t merged) const;
  /// (U, dim) The sum of the gradients of each key. @param gradients (bags, dim)
  [[nodiscard]] Block<float> reduce(std::size_t merged, std::span<float const> gradients) const;
  /// The part of an owner in (U, dim) values.
  template <class Value>
  [[nodiscard]] std::span<Value> of_owner(std::span<Value> values, std::size_t merged, std::size_t owner) const {
    auto const [first, count] = range(merged, owner);
    return values.subspan(first * dims_[merged], count * dims_[merged]);
  }

 private:
  struct Lookup;
  struct Range {
    std::size_t first, count;
  };
  /// Keys of an owner among the U.
  [[nodiscard]] Range range(std::size_t merged, std::size_t owner) const;

  std::shared_ptr<BatchDevice> device_;
  std::vector<std::size_t> dims_;
  std::vector<Lookup> lookups_;
};

}  // namespace headway::embedding
