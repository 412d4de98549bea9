// SPDX-License-Identifier: Apache-2.0

// Detects outputs that share memory with inputs or other outputs, before anything is sent.
//
// Idea for blocks (BlockMap): sort all blocks by address and sweep once. A written block must begin at or after the
// furthest end of all earlier blocks. A read block must begin at or after the furthest end of the earlier written ones;
// reads may overlap reads. If the written blocks were added in ascending order and apart from all reads, nothing is
// sorted.
//
// Example: reads [0, 8), [4, 12) and [30, 34), write [12, 20). The sweep accepts the first two reads, the write,
// because 12 >= 12, and the last read, because 30 >= 20. A write of [10, 18) would be refused: it begins before 12.
//
// Idea for strided tensors (expects_disjoint_outputs): tensors whose address ranges overlap form a cluster. One bool
// per element of the cluster's range is marked through each tensor's own strides. An element that is marked twice is
// shared.
// Example: two columns of a row-major matrix have overlapping ranges but no common element, so they pass.
//
// Invariants: one tensor overlaps itself if a stride is 0, or, where strides are not nested, if it marks fewer
// positions than it has elements. Elements of different sizes or alignment in one cluster count as shared.
// Complexity: blocks O(1) in the common case, else O(n log n). Tensors: O(n log n), plus O(elements of the range) per
// cluster of two or more and per tensor whose strides are not nested.
// Source: sweep over interval end points; at::has_internal_overlap() for strides of 0.

#include "tensors/memory_overlap.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <string>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// Range from a tensor's first to its last element.
struct Range {
  std::byte const* begin;
  std::byte const* end;
  std::size_t index;  ///< Index of the tensor.
};

Range range_of(at::Tensor const& tensor, std::size_t index) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  auto const* const begin = static_cast<std::byte const*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size()), index};
}

/// Finds elements that tensors share, by marking each element in a bool copy of their common range.
class Marks final {
 public:
  Marks(Range const& whole, std::size_t element_bytes)
      : begin_(whole.begin),
        element_bytes_(static_cast<std::int64_t>(element_bytes)),
        marks_(at::zeros({(whole.end - whole.begin) / element_bytes_}, at::kBool)) {}

  /// Marks the elements of `tensor`. @returns false if one was marked before.
  bool mark(at::Tensor const& tensor) {
    auto const offset_bytes = static_cast<std::byte const*>(tensor.const_data_ptr()) - begin_;
    // Elements that straddle those of another tensor count as shared: no program needs that.
    if (tensor.element_size() != element_bytes_ || offset_bytes % element_bytes_ != 0) return false;
    auto const view = marks_.as_strided(tensor.sizes(), tensor.strides(), offset_bytes / element_bytes_);
    if (view.any().item<bool>()) return false;
    view.fill_(true);
    return true;
  }
  [[nodiscard]] std::int64_t count() const { return marks_.sum().item<std::int64_t>(); }

 private:
  std::byte const* begin_;
  std::int64_t element_bytes_;
  at::Tensor marks_;
};

/// True if each dimension's stride exceeds the reach of all dimensions with smaller strides. Then no element is shared.
bool has_nested_strides(at::Tensor const& tensor) {
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 8> dims;  // Stride and size.
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1) dims.emplace_back(tensor.stride(dim), tensor.size(dim));
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 0;
  for (auto const& [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += (size - 1) * stride;
  }
  return true;
}

bool overlaps_itself(at::Tensor const& tensor) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) return true;  // A stride of 0.
  if (has_nested_strides(tensor)) return false;
  Marks marks(range_of(tensor, 0), tensor.element_size());
  marks.mark(tensor);
  return marks.count() != tensor.numel();
}

/// Checks the tensors of one cluster, whose ranges connect without a gap and end at `end`.
void expects_disjoint_elements(std::string_view op_name, std::vector<at::Tensor> const& outputs,
                               std::span<Range const> ranges, std::byte const* end) {
  if (ranges.size() < 2) return;
  Marks marks({ranges.front().begin, end, 0}, outputs[ranges.front().index].element_size());
  for (auto const& range : ranges) {
    TORCH_CHECK_VALUE(marks.mark(outputs[range.index]), "headway: ", op_name, ": output ", range.index,
                      " shares memory with another output: each output needs memory of its own");
  }
}

}  // namespace

std::string BlockMap::describe(Block const& block) {
  std::string const what = block.is_written ? "the output" : "the input";
  if (block.rank == kNoRank) return what;
  return what + (block.is_written ? " from rank " : " for rank ") + std::to_string(block.rank);
}

void BlockMap::refuse(std::string_view op_name, Block const& one, Block const& other) {
  if (one.is_written && !other.is_written) refuse(op_name, other, one);  // The input is named first.
  TORCH_CHECK_VALUE(
      false, "headway: ", op_name, ": ", describe(one), " and ", describe(other), " share memory: ",
      one.is_written ? "each output needs memory of its own" : "pass a copy of the input, for example input.clone()");
}

void BlockMap::compare_blocks(std::string_view op_name) {
  auto const begins_before = [](Block const& left, Block const& right) { return left.begin < right.begin; };
  std::sort(blocks_.begin(), blocks_.end(), begins_before);
  Block const* furthest = nullptr;          // Block with the furthest end so far.
  Block const* furthest_written = nullptr;  // Same, among written blocks.
  for (auto const& block : blocks_) {
    auto const* const before = block.is_written ? furthest : furthest_written;
    if (before != nullptr && before->end > block.begin) refuse(op_name, *before, block);
    if (furthest == nullptr || furthest->end < block.end) furthest = &block;
    if (block.is_written && (furthest_written == nullptr || furthest_written->end < block.end)) {
      furthest_written = &block;
    }
  }
}

void expects_disjoint_outputs(std::string_view op_name, std::vector<at::Tensor> const& outputs) {
  at::AutoDispatchBelowADInplaceOrView const no_autograd;
  c10::SmallVector<Range, 16> ranges;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].numel() == 0) continue;
    TORCH_CHECK_VALUE(!overlaps_itself(outputs[i]), "headway: ", op_name, ": output ", i,
                      " has several elements in one place of memory, as expand() makes them: it cannot hold a result;"
                      " pass output.clone()");
    ranges.push_back(range_of(outputs[i], i));
  }
  std::sort(ranges.begin(), ranges.end(), [](auto const& left, auto const& right) { return left.begin < right.begin; });
  for (std::size_t first = 0, next = 1; first < ranges.size(); first = next++) {
    auto const* end = ranges[first].end;
    for (; next < ranges.size() && ranges[next].begin < end; ++next) end = std::max(end, ranges[next].end);
    expects_disjoint_elements(op_name, outputs, std::span(ranges).subspan(first, next - first), end);
  }
}

}  // namespace headway::c10d_backend
