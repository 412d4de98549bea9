// SPDX-License-Identifier: Apache-2.0

// Example of the C++ API: ranks share a table of embeddings, look up ids in it and train it, without Python.
// The table is in host memory, as GroupExchanger needs it.
// Each rank looks up the clicks of two users. An id that several ranks look up has one row, on the rank that owns it.
// Start one process per rank. All ranks name the same directory; the FileStore in it lets them find each other:
//   for rank in 0 1; do ./lookup $rank 2 /tmp/meeting-place & done; wait

#include <headway/comm/group.hpp>
#include <headway/comm/store.hpp>
#include <headway/embedding/group_exchanger.hpp>
#include <headway/embedding/sharded_table.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <vector>

namespace {

namespace comm = headway::comm;
namespace embedding = headway::embedding;

constexpr std::uint32_t kClicks = 0;  ///< Id of the table.
constexpr std::size_t kDim = 4;       ///< Columns of an embedding.

/// Looks up one batch and trains it. @returns the first column of each user's summed embedding.
std::vector<float> train_step(embedding::ShardedTable& tables, std::uint32_t step, std::int64_t own_id) {
  // Two users: one has clicked on 7 and on an id of this rank's own, the other on 7 twice.
  std::vector<std::int64_t> const ids{7, own_id, 7, 7}, lengths{2, 2};
  std::vector<embedding::Feature> const features{{.name = "clicks",
                                                  .table = kClicks,
                                                  .pooling = embedding::Pooling::kSum,
                                                  .ids = {ids.data(), ids.size()},
                                                  .lengths = {lengths.data(), lengths.size()}}};
  tables.begin_step(step);
  auto const batch = tables.begin(features);
  tables.finish(*batch);
  std::vector<float> sums(2 * kDim);
  tables.expand(*batch, /*merged=*/0, sums);

  std::vector<float> const gradients(sums.size(), 1);
  std::vector<std::span<float const>> const of_tables{gradients};
  tables.return_gradients(*batch, of_tables);
  tables.apply_gradients(step, {.rate = 0.5});
  return {sums[0], sums[kDim]};
}

}  // namespace

int main(int argument_count, char** arguments) try {
  if (argument_count != 4) {
    std::fprintf(stderr, "usage: %s RANK SIZE DIRECTORY\n", arguments[0]);
    return 2;
  }
  int const rank = std::atoi(arguments[1]);
  int const size = std::atoi(arguments[2]);
  comm::FileStore store(arguments[3]);
  auto const group = comm::Group::connect(rank, size, store, {});

  // Tables of equal options are merged: they share storage and exchanges. Here it is only one.
  std::vector<embedding::MergedTable> const merged{
      {.options = {.dim = kDim, .initializer = embedding::Initializer::constant(1)}, .tables = {kClicks}}};
  embedding::ShardedTable tables(merged, std::make_unique<embedding::GroupExchanger>(*group));

  // New embeddings are 1. The gradient of id 7 is its number of clicks on all ranks, 3 each, and that of a rank's own
  // id is 1. So the step subtracts 0.5 * 3 * size from id 7, and 0.5 from the others.
  train_step(tables, 1, 100 + rank);
  auto const sums = train_step(tables, 2, 100 + rank);
  float const seven = 1 - 1.5F * static_cast<float>(size), own = 0.5F;
  bool const is_right = sums[0] == seven + own && sums[1] == 2 * seven;
  std::printf("rank %d of %d: sums %g and %g, %s\n", rank, size, sums[0], sums[1], is_right ? "as expected" : "WRONG");
  return is_right ? 0 : 1;
} catch (std::exception const& error) {
  std::fprintf(stderr, "lookup: %s\n", error.what());
  return 1;
}
