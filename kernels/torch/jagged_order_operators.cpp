// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.jagged_permute, jagged_transpose, ranged_dispatch, ranged_combine and their backward passes. They
// reorder jagged rows of several features and samples. python/headway/ops documents the arguments.
//
// An item is the rows of one feature in one sample, a segment one or more neighbouring items. Every operator is a move
// of segments (jagged_moves.hpp) in three steps: move the lengths as rows of one number each, scan both lists of
// lengths to offsets, move the rows. Nothing waits for a device unless the caller does not say how many rows the result
// has.
//
// Example: ranged_dispatch, F = 2, B = 3, bounds 0 2 3 (rank 0 has samples 0 and 1). Items f0s0 f0s1 f0s2 f1s0 f1s1
// f1s2 become f0s0 f0s1 f1s0 f1s1 | f0s2 f1s2: each rank's rows lie together, ready for an all-to-all exchange.

#include "headway/kernels/jagged_offsets.hpp"
#include "headway/kernels/jagged_sums.hpp"
#include "jagged_tensors.hpp"
#include "tensor_arguments.hpp"
#include "torch_headers.hpp"

#include <tuple>

namespace headway::kernels {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Checks on the CPU that lengths are not negative and add up to `num_rows`.
void expect_lengths_of(at::Tensor const& lengths, std::int64_t num_rows, char const* op) {
  at::Tensor const flat = lengths.reshape({-1}).to(at::kLong);
  auto const* const values = flat.const_data_ptr<std::int64_t>();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    TORCH_CHECK_VALUE(0 <= values[i] && values[i] <= num_rows, op, ": lengths has ", values[i], " for item ", i,
                      ", and there are ", num_rows, " rows");
    // Rows without columns take no memory, so a sum of lengths could overflow; the remaining rows cannot.
    TORCH_CHECK_VALUE(values[i] <= num_rows - sum, op, ": lengths of items 0 to ", i, " add up to more rows than ",
                      "there are, and there are ", num_rows, " rows");
    sum += values[i];
  }
  TORCH_CHECK_VALUE(sum == num_rows, op, ": lengths add up to ", sum, ", and there are ", num_rows, " rows");
}

/// Contiguous (features, samples) lengths on the device of the values. A device checks their values later.
at::Tensor lengths_of_items(at::Tensor const& lengths, at::Tensor const& values, char const* op) {
  TORCH_CHECK_VALUE(lengths.dim() == 2, op, ": lengths must be (features, samples), not ", lengths.sizes());
  TORCH_CHECK_VALUE(lengths.device() == values.device(), op, ": lengths are on ", lengths.device(), " and values on ",
                    values.device());
  at::Tensor const items = lengths.contiguous();
  if (items.is_cpu()) expect_lengths_of(items, values.size(0), op);
  return items;
}

/// Checked list of features or samples; null if there is none. On a device, a wrong entry is an assertion there.
std::int64_t const* list_below(OptionalTensor const& list, char const* name, at::Device device, std::int64_t count) {
  auto const* const entries = list_of(list, name, device);
  for (std::int64_t i = 0; list && device.is_cpu() && i < list->numel(); ++i) {
    TORCH_CHECK_VALUE(0 <= entries[i] && entries[i] < count, name, ": there is no ", entries[i], " (entry ", i,
                      "), only 0 to ", count - 1);
  }
  return entries;
}

/// Segments for items of one row each.
Segments one_row_each(std::int64_t num_items, SegmentOrder const& order = {}) {
  return {.num_items = num_items, .order = order};
}

/// Segments for items at offsets.
Segments at_offsets(at::Tensor const& offsets, SegmentOrder const& order = {}) {
  return {.offsets = offsets.const_data_ptr<std::int64_t>(), .num_items = offsets.numel() - 1, .order = order};
}

/// Reordering of segments: the segment at `placed` in the source is at `packed` in the result.
struct Reordering {
  std::int64_t num_segments;
  SegmentOrder packed, placed;
};

/// Lengths after a reordering, (num_items).
at::Tensor reorder_lengths(at::Tensor const& lengths, Reordering const& reordering, std::int64_t num_items) {
  at::Tensor const out = at::empty({num_items}, lengths.options());
  move_tensors({.num_segments = reordering.num_segments,
                .packed = one_row_each(num_items, reordering.packed),
                .placed = one_row_each(lengths.numel(), reordering.placed),
                .num_packed_rows = num_items,
                .num_placed_rows = lengths.numel()},
               lengths.reshape({-1}), out);
  return out;
}

/// Result of reorder(): rows, their lengths, and the offsets of both sides.
struct Reordered {
  Tensors values;
  at::Tensor lengths, offsets, source_offsets;
};

/// Reads the number of rows from offsets, which waits for a device. The first offset is not 0 if the lengths before the
/// move do not add up to their rows, since one scan computes both lists (MovedLengths).
std::int64_t read_num_rows(at::Tensor const& offsets, std::int64_t num_items) {
  at::Tensor const ends = at::cat({offsets.slice(0, 0, 1), offsets.slice(0, num_items, num_items + 1)}).cpu();
  auto const* const values = ends.const_data_ptr<std::int64_t>();
  TORCH_CHECK_VALUE(values[0] == 0, "jagged_permute: lengths add up to ", -values[0], " rows less than there are");
  return values[1];
}

/// Reorders rows and their lengths.
/// @param num_rows rows of the result; if not given, they are read from its offsets, which waits for a device
Reordered reorder(Tensors const& values, at::Tensor const& lengths, Reordering const& reordering,
                  std::int64_t num_items, std::optional<std::int64_t> num_rows) {
  at::Tensor const out_lengths = reorder_lengths(lengths, reordering, num_items);
  auto const [source_offsets, offsets] = offsets_of_both(lengths, out_lengths, values[0].size(0));
  std::int64_t const num_out = num_rows ? *num_rows : read_num_rows(offsets, num_items);
  Tensors outs = empty_rows_like(values, {num_out});
  move_tensors({.num_segments = reordering.num_segments,
                .packed = at_offsets(offsets, reordering.packed),
                .placed = at_offsets(source_offsets, reordering.placed),
                .num_packed_rows = num_out,
                .num_placed_rows = values[0].size(0)},
               values, outs);
  return {std::move(outs), out_lengths, offsets, source_offsets};
}

/// Chooses items: item (i, j) of the result has the rows of item (features[i], samples[j]). An entry may repeat,
/// which copies the item, or be absent, which drops it. Without a list of samples whole features move, each as one
/// segment. Example: F = 2, B = 1, lengths 2 | 1, features = 1 0 1. Rows a0 a1 | b0 become b0 | a0 a1 | b0, lengths 1
/// | 2 | 1.
/// @returns values, lengths (features, samples), offsets of the result, offsets of the source
std::tuple<Tensors, at::Tensor, at::Tensor, at::Tensor> jagged_permute(at::TensorList values, at::Tensor const& lengths,
                                                                       OptionalTensor const& features,
                                                                       OptionalTensor const& samples,
                                                                       std::optional<std::int64_t> num_rows) {
  Tensors const rows = contiguous_rows(values, "jagged_permute");
  at::Tensor const sources = lengths_of_items(lengths, rows[0], "jagged_permute");
  auto const device = rows[0].device();
  auto const* const feature_list = list_below(features, "jagged_permute: features", device, sources.size(0));
  auto const* const sample_list = list_below(samples, "jagged_permute: samples", device, sources.size(1));
  std::int64_t const num_features = features ? features->numel() : sources.size(0);
  std::int64_t const num_samples = samples ? samples->numel() : sources.size(1);
  std::int64_t const num_items = num_features * num_samples;
  Reordering const reordering =
      samples ? Reordering{num_items, {}, SegmentOrder::chosen(feature_list, sample_list, num_samples, sources.size(1))}
              : Reordering{num_features, SegmentOrder::whole(nullptr, num_samples),
                           SegmentOrder::whole(feature_list, num_samples)};
  auto out = reorder(rows, sources, reordering, num_items, num_rows);
  // Outputs of an operator must not share memory with each other, so one half of the offsets is copied.
  return {std::move(out.values), out.lengths.view({num_features, num_samples}), out.offsets.clone(),
          out.source_offsets};
}

/// CSR map from each entry of a list of indices to its copies, with its memory.
struct InvertedList {
  at::Tensor csr_offsets, csr_indices;

  InvertedList(OptionalTensor const& list, std::int64_t num_entries) {
    if (!list) return;
    auto const [sorted, order] = list->sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    csr_indices = order;
    csr_offsets = at::searchsorted(sorted, at::arange(num_entries + 1, list->options()));
  }
  [[nodiscard]] ListCopies view() const {
    if (!csr_indices.defined()) return {};
    return {csr_offsets.const_data_ptr<std::int64_t>(), csr_indices.const_data_ptr<std::int64_t>()};
  }
};

/// The gradient of a source row is the sum over its copies; a row without a copy gets 0. The lists are inverted
/// first: for each source entry, the indices at which the list names it. Then each sum adds its copies in ascending
/// order, without atomics, so the result does not depend on scheduling.
Tensors jagged_permute_backward(at::TensorList grads, at::Tensor const& offsets, at::Tensor const& source_offsets,
                                OptionalTensor const& features, OptionalTensor const& samples,
                                std::int64_t num_features, std::int64_t num_samples, std::int64_t num_rows) {
  Tensors const copies = contiguous_rows(grads, "jagged_permute_backward");
  auto const device = copies[0].device();
  InvertedList const by_feature(features, num_features), by_sample(samples, num_samples);
  CopiedItems const items{.num_features = num_features,
                          .num_samples = num_samples,
                          .num_rows = num_rows,
                          .offsets = list_of(source_offsets, "jagged_permute_backward: source_offsets", device,
                                             num_features * num_samples + 1),
                          .num_copied_samples = samples ? samples->numel() : num_samples,
                          .num_copied_rows = copies[0].size(0),
                          .copied_offsets = list_of(offsets, "jagged_permute_backward: offsets", device),
                          .features = by_feature.view(),
                          .samples = by_sample.view()};
  Tensors sums = empty_rows_like(copies, {num_rows});
  std::vector<CopiedRows> tensors;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (num_columns(copies[i]) == 0) continue;
    tensors.push_back({.type = element_type(copies[i], "jagged_permute_backward", "values"),
                       .num_columns = num_columns(copies[i]),
                       .copies = copies[i].const_data_ptr(),
                       .sums = sums[i].mutable_data_ptr()});
  }
  call_kernel([&] {
    if (device.is_cpu()) return sum_copies(items, tensors, torch_executor());
    c10::DeviceGuard const guard(device);
    sum_copies_async(items, tensors, current_stream(device));
  });
  return sums;
}

/// Swaps features and samples. Example: F = 2, B = 2, items f0s0 f0s1 f1s0 f1s1 become f0s0 f1s0 f0s1 f1s1. The
/// backward pass is the same operator on the gradient.
std::tuple<Tensors, at::Tensor> jagged_transpose(at::TensorList values, at::Tensor const& lengths) {
  Tensors const rows = contiguous_rows(values, "jagged_transpose");
  at::Tensor const sources = lengths_of_items(lengths, rows[0], "jagged_transpose");
  Reordering const reordering{sources.numel(), {}, SegmentOrder::transposed(sources.size(0), sources.size(1))};
  auto out = reorder(rows, sources, reordering, sources.numel(), rows[0].size(0));
  return {std::move(out.values), out.lengths.view({sources.size(1), sources.size(0)})};
}

/// Segments by rank and feature, in both orders of ranged_dispatch and ranged_combine.
class RankRuns {
 public:
  RankRuns(at::Tensor const& bounds, at::Device device, std::int64_t num_features, std::int64_t num_samples,
           char const* op)
      : num_features_(num_features),
        num_samples_(num_samples),
        num_ranks_(bounds.numel() - 1),
        bounds_(list_of(bounds, "bounds", device)) {
    TORCH_CHECK_VALUE(num_ranks_ >= 1, op, ": bounds must have an entry more than there are ranks, at least 2");
    if (!device.is_cpu()) return;
    TORCH_CHECK_VALUE(bounds_[0] == 0 && bounds_[num_ranks_] == num_samples, op, ": bounds go from ", bounds_[0],
                      " to ", bounds_[num_ranks_], ", and must from 0 to the ", num_samples, " samples");
    for (std::int64_t rank = 0; rank < num_ranks_; ++rank) {
      TORCH_CHECK_VALUE(bounds_[rank] <= bounds_[rank + 1], op, ": bounds of rank ", rank, " descend from ",
                        bounds_[rank], " to ", bounds_[rank + 1]);
    }
  }

  /// Move between rows in rank order (packed; a gather produces it) and in feature order (placed; a scatter produces
  /// it).
  /// @param by_rank, by_feature offsets of items; if undefined, each item has one row
  [[nodiscard]] JaggedMove move(JaggedMove::Direction direction, std::int64_t num_rows, at::Tensor const& by_rank = {},
                                at::Tensor const& by_feature = {}) const {
    return {.num_segments = num_ranks_ * num_features_,
            .packed = segments(by_rank, SegmentOrder::Kind::kRunsByRank),
            .placed = segments(by_feature, SegmentOrder::Kind::kRunsByFeature),
            .num_packed_rows = num_rows,
            .num_placed_rows = num_rows,
            .direction = direction};
  }

  /// Rows of each rank, (ranks) int64.
  [[nodiscard]] at::Tensor rows_of_ranks(at::Tensor const& by_rank) const {
    at::Tensor const num_rows = at::empty({num_ranks_}, by_rank.options());
    SegmentGroups const groups{.segments = segments(by_rank, SegmentOrder::Kind::kRunsByRank),
                               .num_groups = num_ranks_,
                               .segments_of_group = num_features_,
                               .num_rows = num_rows.mutable_data_ptr<std::int64_t>()};
    call_kernel([&] {
      if (by_rank.is_cpu()) return count_rows(groups);
      c10::DeviceGuard const guard(by_rank.device());
      count_rows_async(groups, current_stream(by_rank.device()));
    });
    return num_rows;
  }

 private:
  [[nodiscard]] Segments segments(at::Tensor const& offsets, SegmentOrder::Kind kind) const {
    auto const order = SegmentOrder::runs(kind, num_features_, num_samples_, bounds_);
    return offsets.defined() ? at_offsets(offsets, order) : one_row_each(num_features_ * num_samples_, order);
  }

  std::int64_t num_features_, num_samples_, num_ranks_;
  std::int64_t const* bounds_;
};

using Direction = JaggedMove::Direction;

/// Feature order to rank order; the example is at the top of the file.
/// @param bounds (ranks + 1): rank r gets the samples bounds[r] to bounds[r + 1] - 1
/// @returns values, lengths in rank order (features * samples), and the rows of each rank: the splits of an all-to-all
std::tuple<Tensors, at::Tensor, at::Tensor> ranged_dispatch(at::TensorList values, at::Tensor const& lengths,
                                                            at::Tensor const& bounds) {
  Tensors const rows = contiguous_rows(values, "ranged_dispatch");
  at::Tensor const sources = lengths_of_items(lengths, rows[0], "ranged_dispatch");
  RankRuns const runs(bounds, rows[0].device(), sources.size(0), sources.size(1), "ranged_dispatch");
  at::Tensor const out_lengths = at::empty({sources.numel()}, sources.options());
  move_tensors(runs.move(Direction::kGather, sources.numel()), sources.view({-1}), out_lengths);
  auto const [by_feature, by_rank] = offsets_of_both(sources, out_lengths, rows[0].size(0));
  Tensors outs = empty_rows_like(rows, {rows[0].size(0)});
  move_tensors(runs.move(Direction::kGather, rows[0].size(0), by_rank, by_feature), rows, outs);
  return {std::move(outs), out_lengths, runs.rows_of_ranks(by_rank)};
}

/// Inverse of ranged_dispatch(): rank order back to feature order. It scatters where ranged_dispatch() gathers.
/// @param lengths in rank order (features * samples)
std::tuple<Tensors, at::Tensor> ranged_combine(at::TensorList values, at::Tensor const& lengths,
                                               at::Tensor const& bounds, std::int64_t num_features) {
  Tensors const rows = contiguous_rows(values, "ranged_combine");
  TORCH_CHECK_VALUE(lengths.dim() == 1 && lengths.device() == rows[0].device(),
                    "ranged_combine: lengths must be one dimension on ", rows[0].device(), ", not ", lengths.sizes(),
                    " on ", lengths.device());
  TORCH_CHECK_VALUE(
      num_features >= 0 && (num_features == 0 ? lengths.numel() == 0 : lengths.numel() % num_features == 0),
      "ranged_combine: ", lengths.numel(), " lengths are not of ", num_features, " features each");
  at::Tensor const sources = lengths.contiguous();
  std::int64_t const num_samples = num_features == 0 ? 0 : sources.numel() / num_features;
  RankRuns const runs(bounds, rows[0].device(), num_features, num_samples, "ranged_combine");
  at::Tensor const out_lengths = at::empty({num_features, num_samples}, sources.options());
  move_tensors(runs.move(Direction::kScatter, sources.numel()), sources, out_lengths);
  auto const [by_rank, by_feature] = offsets_of_both(sources, out_lengths, rows[0].size(0));
  Tensors outs = empty_rows_like(rows, {rows[0].size(0)});
  move_tensors(runs.move(Direction::kScatter, rows[0].size(0), by_rank, by_feature), rows, outs);
  return {std::move(outs), out_lengths};
}

/// Dense form: (features, samples, ...) becomes (features * samples, ...) in rank order.
Tensors ranged_dispatch_dense(at::TensorList values, at::Tensor const& bounds) {
  Tensors const rows = contiguous_rows(values, "ranged_dispatch_dense");
  for (auto const& each : rows) {
    TORCH_CHECK_VALUE(each.dim() >= 2 && each.size(1) == rows[0].size(1),
                      "ranged_dispatch_dense: values must be (features, samples, ...), with equally many samples, not ",
                      each.sizes());
  }
  std::int64_t const num_features = rows[0].size(0), num_samples = rows[0].size(1);
  RankRuns const runs(bounds, rows[0].device(), num_features, num_samples, "ranged_dispatch_dense");
  Tensors outs = empty_rows_like(rows, {num_features * num_samples}, 2);
  move_tensors(runs.move(Direction::kGather, num_features * num_samples), rows, outs, 2);
  return outs;
}

/// Inverse of ranged_dispatch_dense().
Tensors ranged_combine_dense(at::TensorList values, at::Tensor const& bounds, std::int64_t num_features) {
  Tensors const rows = contiguous_rows(values, "ranged_combine_dense");
  std::int64_t const num_rows = rows[0].size(0);
  TORCH_CHECK_VALUE(num_features >= 1 && num_rows % num_features == 0, "ranged_combine_dense: ", num_rows,
                    " rows are not of ", num_features, " features each");
  std::int64_t const num_samples = num_rows / num_features;
  RankRuns const runs(bounds, rows[0].device(), num_features, num_samples, "ranged_combine_dense");
  Tensors outs = empty_rows_like(rows, {num_features, num_samples});
  move_tensors(runs.move(Direction::kScatter, num_rows), rows, outs);
  return outs;
}

void implement(torch::Library& library) {
  library.impl("jagged_permute", &jagged_permute);
  library.impl("jagged_permute_backward", &jagged_permute_backward);
  library.impl("jagged_transpose", &jagged_transpose);
  library.impl("ranged_dispatch", &ranged_dispatch);
  library.impl("ranged_combine", &ranged_combine);
  library.impl("ranged_dispatch_dense", &ranged_dispatch_dense);
  library.impl("ranged_combine_dense", &ranged_combine_dense);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  library.def(
      "jagged_permute(Tensor[] values, Tensor lengths, Tensor? features, Tensor? samples, SymInt? num_rows) -> "
      "(Tensor[], Tensor, Tensor, Tensor)");
  library.def(
      "jagged_permute_backward(Tensor[] grads, Tensor offsets, Tensor source_offsets, Tensor? features, Tensor? "
      "samples, SymInt num_features, SymInt num_samples, SymInt num_rows) -> Tensor[]");
  library.def("jagged_transpose(Tensor[] values, Tensor lengths) -> (Tensor[], Tensor)");
  library.def("ranged_dispatch(Tensor[] values, Tensor lengths, Tensor bounds) -> (Tensor[], Tensor, Tensor)");
  library.def(
      "ranged_combine(Tensor[] values, Tensor lengths, Tensor bounds, SymInt num_features) -> (Tensor[], Tensor)");
  library.def("ranged_dispatch_dense(Tensor[] values, Tensor bounds) -> Tensor[]");
  library.def("ranged_combine_dense(Tensor[] values, Tensor bounds, SymInt num_features) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(headway, CUDA, library) { implement(library); }

}  // namespace headway::kernels
