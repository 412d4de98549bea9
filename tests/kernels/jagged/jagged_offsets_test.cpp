// SPDX-License-Identifier: Apache-2.0

// Offsets of jagged items before and after a move, computed in one scan, and the rows of groups of segments.
//
// An item is the list of rows of one feature in one sample. A segment is consecutive items that move together, here a
// run: the items of a feature whose samples belong to one rank.

#include "headway/kernels/jagged_offsets.hpp"

#include "jagged_backend.hpp"

#include <random>

namespace headway::kernels {
namespace {

using Numbers = std::vector<std::int64_t>;

class JaggedOffsets : public JaggedKernels {
 protected:
  std::mt19937 random_{1};

  template <class Length>
  std::vector<Length> draw_lengths(std::int64_t size) {
    std::vector<Length> lengths(static_cast<std::size_t>(size));
    for (auto& length : lengths) length = static_cast<Length>(random_() % 4);
    return lengths;
  }

  template <class Length>
  void expect_offsets(MovedLengths::LengthType type, std::int64_t num_before, std::int64_t num_after) {
    auto const before = draw_lengths<Length>(num_before), after = draw_lengths<Length>(num_after);
    Numbers const offsets_before = offsets_of({before.begin(), before.end()});
    Numbers expected = offsets_before;
    for (auto const offset : offsets_of({after.begin(), after.end()})) expected.push_back(offset);
    auto const on_backend = backend_->array(before), after_on_backend = backend_->array(after);
    auto const offsets = backend_->room<std::int64_t>(num_before + num_after + 2);
    backend_->find_offsets({.type = type,
                            .num_before = num_before,
                            .num_after = num_after,
                            .num_rows = offsets_before.back(),
                            .before = on_backend.data(),
                            .after = after_on_backend.data(),
                            .offsets = offsets.data()});
    EXPECT_EQ(to_vector(offsets), expected) << num_before << " lengths, then " << num_after;
  }
};

TEST_P(JaggedOffsets, LengthsBeforeAndAfterHaveOffsetsOfTheirOwn) {
  for (std::int64_t const num_before : {0, 1, 700, 9000}) {
    for (std::int64_t const num_after : {0, 1, 350, 20000}) {
      expect_offsets<std::int64_t>(MovedLengths::LengthType::kInt64, num_before, num_after);
      expect_offsets<std::int32_t>(MovedLengths::LengthType::kInt32, num_before, num_after);
    }
  }
}

TEST_P(JaggedOffsets, GroupsOfSegmentsHaveTheRowsOfAll) {
  // Two features of five samples in rank order: rank 0 has 2 samples, rank 1 none, rank 2 the other 3.
  auto const offsets = backend_->array(Numbers{0, 1, 3, 3, 7, 8, 8, 8, 10, 15, 21});
  auto const bounds = backend_->array(Numbers{0, 2, 2, 5});
  auto const count = [&](std::int64_t num_features, std::int64_t num_items) {
    auto const num_rows = backend_->room<std::int64_t>(3);
    backend_->count_rows(
        {.segments = {.offsets = offsets.data(),
                      .num_items = num_items,
                      .order = SegmentOrder::runs(SegmentOrder::Kind::kRunsByRank, num_features, 5, bounds.data())},
         .num_groups = 3,
         .segments_of_group = num_features,
         .num_rows = num_rows.data()});
    return to_vector(num_rows);
  };
  EXPECT_EQ(count(2, 10), (Numbers{7, 0, 14}));
  EXPECT_EQ(count(0, 0), (Numbers{0, 0, 0}));
}

INSTANTIATE_TEST_SUITE_P(Backends, JaggedOffsets, testing::ValuesIn(jagged_backends()), name_of_backend<JaggedBackend>);

}  // namespace
}  // namespace headway::kernels
