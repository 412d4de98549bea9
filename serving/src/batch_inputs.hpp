// SPDX-License-Identifier: Apache-2.0

// Requests of one batch, joined and padded.
//
// Example: two requests with 2 and 1 items, a bucket of 4 items, and a feature with lists of ids.
//   lengths {1, 2} and {1} become {1, 2, 1, 0}. The lookup gives four rows, of which the last is 0, and the dense part
//   takes them where they are. The outputs of the second request are row 2.
//   A sequence has a row for each value. Its rows are copied to zeros for as many as the bucket has.
// Invariants: nothing of a request depends on its neighbours, but for its position.

#pragma once

#include "headway/embedding/features.hpp"
#include "headway/serving/dense_model.hpp"
#include "headway/serving/package.hpp"
#include "headway/serving/request.hpp"
#include "headway/serving/row_fetcher.hpp"
#include "headway/serving/tables.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::serving {

class BatchInputs {
 public:
  /// @param part index into Manifest::parts, whose bucket holds all requests
  BatchInputs(Manifest const& manifest, MergedTables const& merged, std::size_t part);

  /// Appends a request.
  /// @returns the index of its first item
  std::size_t add(Request const& request, Sizes const& sizes);
  /// The features to look up, once all requests are there. Valid as long as this object.
  [[nodiscard]] std::vector<embedding::Feature> features() const;
  /// Takes the rows of the features.
  /// @returns the inputs of the dense part; valid as long as this object
  [[nodiscard]] std::vector<InputTensor> take_rows(RowFetcher::Fetch& fetch);

  [[nodiscard]] std::size_t part() const { return part_; }
  [[nodiscard]] Sizes const& sizes() const { return sizes_; }

 private:
  struct Lists {
    std::vector<std::int64_t> ids{};
    std::vector<std::int32_t> lengths{};
    std::vector<float> padded_rows{};  ///< (bucket's tokens, dim), for sequences.
  };

  [[nodiscard]] Sizes const& bucket() const { return manifest_.parts[part_].bucket; }

  Manifest const& manifest_;
  MergedTables const& merged_;
  std::size_t part_;
  Sizes sizes_;
  std::vector<Lists> lists_;                                 ///< (features) Padded to the bucket, but for ids.
  std::vector<std::vector<float>> dense_;                    ///< (dense features) Padded.
  std::vector<std::int64_t> items_;                          ///< (bucket's users) Padded.
  std::vector<std::vector<float>> rows_;                     ///< (merged tables) (bags, dim)
  std::vector<std::vector<std::int64_t>> sequence_lengths_;  ///< (sequences) (bucket's users)
};

}  // namespace headway::serving
