// SPDX-License-Identifier: Apache-2.0

// Refusals that only the CPU can give: it checks offsets and lists before it reads through them.

#include "headway/kernels/jagged_moves.hpp"
#include "headway/kernels/jagged_sums.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::kernels {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Error text of a gather of `items`, out of two items with 2 and 1 rows, into segments at `offsets`; "none" if
/// accepted.
std::string refusal(Numbers const& offsets, Numbers const& items, std::int64_t num_rows) {
  Numbers const in_offsets{0, 2, 3};
  std::vector<std::uint8_t> source(3), out(16);
  JaggedMove const move{.num_segments = static_cast<std::int64_t>(items.size()),
                        .packed = {.offsets = offsets.data(), .num_items = static_cast<std::int64_t>(items.size())},
                        .placed = {.offsets = in_offsets.data(), .num_items = 2, .order = {.outer = items.data()}},
                        .num_packed_rows = num_rows,
                        .num_placed_rows = 3};
  MovedRows const rows{.source = source.data(), .out = out.data(), .row_bytes = 1};
  try {
    move_rows(move, {&rows, 1}, run_serially);
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
  return "none";
}

TEST(HostRefusals, ItemsThatAreNotThereAreNamed) {
  EXPECT_EQ(refusal({0, 2, 3}, {0, 1}, 3), "none");
  EXPECT_NE(refusal({0, 2, 3}, {0, 2}, 3).find("segment 1 is of the items 2 to 3, and there are 2"), std::string::npos);
  EXPECT_NE(refusal({0, 2, 3}, {-1, 1}, 3).find("segment 0 is of the items -1 to 0"), std::string::npos);
}

TEST(HostRefusals, OffsetsMustCoverTheRowsInOrder) {
  EXPECT_NE(refusal({0, 2, 3}, {0, 1}, 4).find("do not add up to the 4 rows"), std::string::npos);
  EXPECT_NE(refusal({0, 4, 3}, {0, 1}, 3).find("segment 0 is of the rows 0 to 4"), std::string::npos);
  EXPECT_NE(refusal({1, 2, 3}, {0, 1}, 3).find("segment 0 of 2 is of the rows 1 to 2"), std::string::npos);
}

// One rank, one feature and two samples, so the right bounds are {0, 2}.
TEST(HostRefusals, BoundsMustCoverTheSamples) {
  for (Numbers const& bounds : {Numbers{0, 1}, Numbers{1, 2}, Numbers{0, -1}, Numbers{-5, 1}}) {
    auto const runs = [&](SegmentOrder::Kind kind) {
      return Segments{.num_items = 2, .order = SegmentOrder::runs(kind, 1, 2, bounds.data())};
    };
    JaggedMove const move{.num_segments = 1,
                          .packed = runs(SegmentOrder::Kind::kRunsByRank),
                          .placed = runs(SegmentOrder::Kind::kRunsByFeature),
                          .num_packed_rows = 2,
                          .num_placed_rows = 2};
    EXPECT_THROW(move_rows(move, {}, run_serially), std::invalid_argument) << bounds[0] << " to " << bounds[1];
  }
}

TEST(HostRefusals, SumsLookAtOffsetsToo) {
  Numbers const offsets{0, 3, 2};
  std::vector<float> values(2), out(2);
  JaggedRows const rows{
      .num_samples = 2, .num_rows = 2, .num_columns = 1, .offsets = offsets.data(), .values = values.data()};
  EXPECT_THROW(reduce_samples(rows, SampleReduction::kSum, out.data(), run_serially), std::invalid_argument);
  EXPECT_THROW(add_dense(rows, values.data(), 1, out.data(), run_serially), std::invalid_argument);
}

}  // namespace
}  // namespace headway::kernels
