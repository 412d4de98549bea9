// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/dense_model.hpp"
#include "headway/serving/package.hpp"
#include "headway/serving/tables.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace headway::serving {

/// One version of a model, without its rows.
///
/// Compiled parts add in another order for another size, so they may differ in the last bit. A reply must not depend on
/// the other requests of its batch, so only parts whose outputs have the bits of the largest one are used.
class ServedModel {
 public:
  /// Computes a trial batch in each part, and compares the outputs.
  /// @throws PackageError if the outputs have other names or sizes than the manifest says, or a part fails
  ServedModel(Manifest manifest, std::shared_ptr<DenseModel> dense);

  [[nodiscard]] Manifest const& manifest() const { return manifest_; }
  [[nodiscard]] MergedTables const& merged() const { return merged_; }
  [[nodiscard]] std::shared_ptr<DenseModel> const& dense() const { return dense_; }
  /// The largest bucket: a batch has at most these sizes.
  [[nodiscard]] Sizes const& room() const { return manifest_.parts[parts_.back()].bucket; }
  /// Part with the fewest items and tokens that holds a batch of at most room(), among those with equal bits.
  [[nodiscard]] std::size_t part_for(Sizes const& sizes) const;
  /// Parts that are used, ascending by size.
  [[nodiscard]] std::vector<std::size_t> const& parts() const { return parts_; }

 private:
  Manifest manifest_;
  MergedTables merged_;
  std::shared_ptr<DenseModel> dense_;
  std::vector<std::size_t> parts_;
};

}  // namespace headway::serving
