// SPDX-License-Identifier: Apache-2.0

// Buffers of an all-to-all for the rows of several merged tables.
//
// Idea: a buffer is rank-major: all rows for rank 0, table by table, then all rows for rank 1. One table has that order
// already, so its rows are the buffer. A piece is the rows of one table for one rank. A merged table counts as one.
//
// Example: G = 2 tables with 1 and 2 columns, R = 2 ranks; a rank sends 1 and 2 rows of table 0, and 1 and 0 of
// table 1.
//   The buffer is [table 0: 1 element][table 1: 2 elements] [table 0: 2 elements], with splits 3 and 2.
// Invariants: the pieces of a buffer have no gaps, and each element of a table is in one piece.
// Complexity: O(G R) pieces. On the CPU a piece is one copy of memory; on a GPU it is a view, and all are joined by one
//   kernel.

#include "process_group/rank_buffers.hpp"

#include "headway/base/status.hpp"

#include <cstddef>
#include <cstring>

namespace headway::embedding {

namespace {

/// Rows of each merged table for, or from, each rank. @throws base::UsageError unless they are (G, R) int64 on the CPU
class Counts {
 public:
  Counts(at::Tensor const& counts, std::size_t num_tables) : counts_(counts.contiguous()) {
    base::expects(counts.dim() == 2 && counts.is_cpu() && counts.scalar_type() == at::kLong &&
                      counts.size(0) == static_cast<std::int64_t>(num_tables),
                  "counts must be int64 on the CPU, (merged tables, ranks)");
    numbers_ = counts_.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < counts_.numel(); ++i) base::expects(numbers_[i] >= 0, "a count is negative");
  }
  [[nodiscard]] std::size_t num_ranks() const { return static_cast<std::size_t>(counts_.size(1)); }
  [[nodiscard]] std::int64_t operator()(std::size_t table, std::size_t rank) const {
    return numbers_[table * num_ranks() + rank];
  }
  [[nodiscard]] std::int64_t of_table(std::size_t table) const {
    std::int64_t sum = 0;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) sum += (*this)(table, rank);
    return sum;
  }

 private:
  at::Tensor counts_;
  std::int64_t const* numbers_ = nullptr;
};

/// Elements for, or from, each rank; rows if there is one table.
std::vector<std::int64_t> splits_of(Counts const& counts, std::vector<std::int64_t> const& widths) {
  std::vector<std::int64_t> splits(counts.num_ranks());
  for (std::size_t table = 0; table < widths.size(); ++table) {
    std::int64_t const width = widths.size() == 1 ? 1 : widths[table];
    for (std::size_t rank = 0; rank < splits.size(); ++rank) splits[rank] += counts(table, rank) * width;
  }
  return splits;
}

std::int64_t sum_of(std::vector<std::int64_t> const& numbers) {
  std::int64_t sum = 0;
  for (auto const number : numbers) sum += number;
  return sum;
}

/// Calls copy(bytes of the table, number of bytes) for each piece, in the order of the buffer.
/// @param tables first byte of each table
template <class Byte, class Copy>
void for_each_piece(Counts const& counts, std::vector<std::int64_t> const& widths, std::int64_t element_bytes,
                    std::vector<Byte*> tables, Copy copy) {
  for (std::size_t rank = 0; rank < counts.num_ranks(); ++rank) {
    for (std::size_t table = 0; table < widths.size(); ++table) {
      auto const size = static_cast<std::size_t>(counts(table, rank) * widths[table] * element_bytes);
      copy(tables[table], size);
      tables[table] += size;
    }
  }
}

at::Tensor by_rank(std::vector<at::Tensor> const& values, Counts const& counts, std::vector<std::int64_t> const& widths,
                   std::int64_t num_elements) {
  if (values.size() == 1) return values.front().contiguous();
  if (values.front().is_cpu()) {
    auto buffer = at::empty({num_elements}, values.front().options());
    auto* to = static_cast<std::byte*>(buffer.data_ptr());
    std::vector<at::Tensor> contiguous;
    std::vector<std::byte const*> tables;
    for (auto const& each : values) {
      contiguous.push_back(each.contiguous());
      tables.push_back(static_cast<std::byte const*>(contiguous.back().const_data_ptr()));
    }
    for_each_piece(counts, widths, buffer.element_size(), std::move(tables),
                   [&](std::byte const* from, std::size_t size) {
                     if (size > 0) std::memcpy(to, from, size);
                     to += size;
                   });
    return buffer;
  }
  std::vector<at::Tensor> flat, pieces;
  for (auto const& each : values) flat.push_back(each.reshape(-1));
  std::vector<std::int64_t> at(values.size());
  for (std::size_t rank = 0; rank < counts.num_ranks(); ++rank) {
    for (std::size_t table = 0; table < values.size(); ++table) {
      auto const size = counts(table, rank) * widths[table];
      pieces.push_back(flat[table].narrow(0, at[table], size));
      at[table] += size;
    }
  }
  return at::cat(pieces);
}

}  // namespace

AllToAllTensors all_to_all_arguments(std::vector<at::Tensor> const& values, at::Tensor const& sent,
                                     at::Tensor const& received) {
  base::expects(!values.empty(), "an exchange has rows of at least one merged table");
  Counts const send_counts(sent, values.size()), receive_counts(received, values.size());
  base::expects(send_counts.num_ranks() == receive_counts.num_ranks(), "counts for and from the same ranks");
  std::vector<std::int64_t> widths;
  for (std::size_t table = 0; table < values.size(); ++table) {
    auto const& each = values[table];
    base::expects(each.dim() == 2 && each.scalar_type() == values.front().scalar_type() &&
                      each.device() == values.front().device(),
                  "rows of merged tables must have two dimensions, and one type and device");
    base::expects(each.size(0) == send_counts.of_table(table), "counts do not add up to the rows of a merged table");
    widths.push_back(each.size(1));
  }
  auto send_splits = splits_of(send_counts, widths), receive_splits = splits_of(receive_counts, widths);
  auto buffer = by_rank(values, send_counts, widths, sum_of(send_splits));
  std::vector<std::int64_t> shape{sum_of(receive_splits)};
  if (values.size() == 1) shape.push_back(widths.front());
  auto receive_buffer = at::empty(shape, buffer.options());
  return {std::move(receive_buffer), std::move(buffer), std::move(receive_splits), std::move(send_splits)};
}

std::vector<at::Tensor> by_table(at::Tensor const& buffer, at::Tensor const& counts,
                                 std::vector<std::int64_t> const& widths) {
  Counts const rows(counts, widths.size());
  if (widths.size() == 1) return {buffer};
  base::expects(buffer.dim() == 1 && buffer.is_contiguous() && buffer.numel() == sum_of(splits_of(rows, widths)),
                "counts do not add up to the elements of the buffer");
  std::vector<at::Tensor> result;
  if (buffer.is_cpu()) {
    auto const* from = static_cast<std::byte const*>(buffer.const_data_ptr());
    std::vector<std::byte*> tables;
    for (std::size_t table = 0; table < widths.size(); ++table) {
      result.push_back(at::empty({rows.of_table(table), widths[table]}, buffer.options()));
      tables.push_back(static_cast<std::byte*>(result.back().data_ptr()));
    }
    for_each_piece(rows, widths, buffer.element_size(), std::move(tables), [&](std::byte* to, std::size_t size) {
      if (size > 0) std::memcpy(to, from, size);
      from += size;
    });
    return result;
  }
  std::vector<std::vector<at::Tensor>> pieces(widths.size());
  std::int64_t at = 0;
  for (std::size_t rank = 0; rank < rows.num_ranks(); ++rank) {
    for (std::size_t table = 0; table < widths.size(); ++table) {
      auto const size = rows(table, rank) * widths[table];
      pieces[table].push_back(buffer.narrow(0, at, size));
      at += size;
    }
  }
  for (std::size_t table = 0; table < widths.size(); ++table) {
    result.push_back(at::cat(pieces[table]).view({-1, widths[table]}));
  }
  return result;
}

}  // namespace headway::embedding
