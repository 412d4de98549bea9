// SPDX-License-Identifier: Apache-2.0

// Records of a table as bytes, for torch.distributed.checkpoint and for pickled states.
//
// Format: little-endian, without padding. A header of 8-byte integers: layout (version of this format), routing version
//   (of the hash that gives a key its bucket), updates (optimizer steps), first bucket, end bucket, table, rows K,
//   pending keys P (without a row yet), columns D, floats of state S, CRC-32 of all other bytes. Then columns: ids (K),
//   ids of pending keys (P), of 8 bytes each; counts (K), steps (K) of the last lookups, embeddings (K, D), states (K,
//   S), counts of pending keys (P), of 4 bytes each. Layout 1 had no sum; it is read, and not written.
// Example: a fragment of 2 rows of dim 4 without state, and no pending key, has 11 * 8 + 2 * (8 + 4 + 4 + 16) = 152
//   bytes.
// Invariant: columns of 8 bytes come first, so all columns are aligned, and a reader needs no copy.
// Complexity: each byte is copied once, and summed once.

#include "headway/embedding/record_fragment.hpp"

#include "headway/base/crc32.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace headway::embedding {

namespace {

constexpr std::uint64_t kLayoutWithoutSum = 1, kLayout = 2;

enum Field : std::uint8_t {
  kLayoutField,
  kRouting,
  kUpdates,
  kFirstBucket,
  kEndBucket,
  kTable,
  kRows,
  kPending,
  kDim,
  kStateSize,
  kSum,
  kNumFields
};
using Header = std::array<std::uint64_t, kNumFields>;

std::size_t num_fields(std::uint64_t layout) { return std::size_t{layout == kLayout ? kNumFields : kSum}; }

/// CRC-32 of the fields before the sum, and of the columns.
std::uint32_t sum_of(std::span<std::uint64_t const> header, std::span<std::byte const> columns) {
  return base::crc32(columns, base::crc32(std::as_bytes(header.first(kSum))));
}

/// Takes columns from a range of bytes, one after the other.
class Reader {
 public:
  explicit Reader(std::span<std::byte const> bytes) : rest_(bytes) {}

  /// @throws base::UsageError if the bytes are too few
  template <class T>
  std::span<T const> take(std::uint64_t rows, std::uint64_t columns = 1) {
    base::expects(columns == 0 || rows <= rest_.size() / sizeof(T) / columns, "records of a table are truncated");
    auto const size = static_cast<std::size_t>(rows * columns);
    std::span const result(reinterpret_cast<T const*>(rest_.data()), size);
    rest_ = rest_.subspan(size * sizeof(T));
    return result;
  }
  [[nodiscard]] std::span<std::byte const> rest() const { return rest_; }

 private:
  std::span<std::byte const> rest_;
};

std::size_t bytes_of_columns(RecordFragment const& fragment) {
  auto const& [rows, pending] = std::pair<RecordColumns const&, RecordColumns const&>(fragment.rows, fragment.pending);
  return rows.ids.size_bytes() + rows.counts.size_bytes() + rows.steps.size_bytes() + rows.embeddings.size_bytes() +
         rows.states.size_bytes() + pending.ids.size_bytes() + pending.counts.size_bytes();
}

void expect_equal_lengths(RecordFragment const& fragment) {
  auto const& rows = fragment.rows;
  auto const count = rows.ids.size();
  base::expects(rows.counts.size() == count && rows.steps.size() == count &&
                    rows.embeddings.size() == count * rows.dim && rows.states.size() == count * rows.state_size &&
                    fragment.pending.counts.size() == fragment.pending.ids.size(),
                "a column of records is truncated");
}

}  // namespace

std::size_t encoded_bytes(RecordFragment const& fragment) {
  return kNumFields * sizeof(std::uint64_t) + bytes_of_columns(fragment);
}

void encode(RecordFragment const& fragment, std::span<std::byte> bytes) {
  expect_equal_lengths(fragment);
  base::expects(bytes.size() == encoded_bytes(fragment), "the bytes of records have another size");
  auto const& rows = fragment.rows;
  auto const columns = bytes.subspan(kNumFields * sizeof(std::uint64_t));
  auto next = columns.begin();
  auto const append = [&next](auto const& column) { next = std::ranges::copy(std::as_bytes(column), next).out; };
  append(rows.ids);
  append(fragment.pending.ids);
  append(rows.counts);
  append(rows.steps);
  append(rows.embeddings);
  append(rows.states);
  append(fragment.pending.counts);
  Header header{kLayout,
                fragment.routing_version,
                fragment.updates,
                fragment.first_bucket,
                fragment.end_bucket,
                fragment.table,
                rows.ids.size(),
                fragment.pending.ids.size(),
                rows.dim,
                rows.state_size};
  header[kSum] = sum_of(header, columns);
  std::ranges::copy(std::as_bytes(std::span(header)), bytes.begin());
}

RecordFragment decode(std::span<std::byte const> bytes) {
  constexpr std::uint64_t kMostColumns = std::uint64_t{1} << 22;
  Reader reader(bytes);
  auto const layout = Reader(bytes).take<std::uint64_t>(1).front();
  base::expects(layout == kLayout || layout == kLayoutWithoutSum,
                "records of a table have layout " + std::to_string(layout) + ", not " + std::to_string(kLayout) +
                    ": another version wrote them");
  auto const header = reader.take<std::uint64_t>(num_fields(layout));
  base::expects(layout == kLayoutWithoutSum || header[kSum] == sum_of(header, reader.rest()),
                "records of a table are altered or truncated: their CRC-32 differs");
  base::expects(header[kDim] <= kMostColumns && header[kStateSize] <= kMostColumns,
                "records of a table have too many columns");
  auto const narrow = [](std::uint64_t value) {
    base::expects(value <= UINT32_MAX, "records of a table have a number beyond 32 bits");
    return static_cast<std::uint32_t>(value);
  };
  RecordFragment fragment{.routing_version = narrow(header[kRouting]),
                          .updates = header[kUpdates],
                          .first_bucket = narrow(header[kFirstBucket]),
                          .end_bucket = narrow(header[kEndBucket]),
                          .table = narrow(header[kTable]),
                          .rows = {.dim = static_cast<std::size_t>(header[kDim]),
                                   .state_size = static_cast<std::size_t>(header[kStateSize])},
                          .pending = {.are_pending = true}};
  auto &rows = fragment.rows, &pending = fragment.pending;
  rows.table = pending.table = fragment.table;
  rows.ids = reader.take<std::uint64_t>(header[kRows]);
  pending.ids = reader.take<std::uint64_t>(header[kPending]);
  rows.counts = reader.take<std::uint32_t>(header[kRows]);
  rows.steps = reader.take<std::uint32_t>(header[kRows]);
  rows.embeddings = reader.take<float>(header[kRows], rows.dim);
  rows.states = reader.take<float>(header[kRows], rows.state_size);
  pending.counts = reader.take<std::uint32_t>(header[kPending]);
  base::expects(reader.rest().empty(), "records of a table have bytes behind their end");
  return fragment;
}

}  // namespace headway::embedding
