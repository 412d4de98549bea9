// SPDX-License-Identifier: Apache-2.0

// Layout of the bodies, in words of 64 bits (words.hpp).
//
//   rows         number of rows, of floats of embeddings, and of floats of states; indices, marks of stored rows,
//                counts, steps (32 bits each), embeddings, states
//   queries      number of queries; for each: merged table, number of ids, ids
//   answer       number of tables, rows of each
//   to store     number of tables; for each: merged table, rows

#include "headway/hybrid/indexed_rows.hpp"

#include "messages/row_words.hpp"

#include <array>
#include <string>

namespace headway::hybrid {

namespace {

constexpr std::uint64_t kMostRows = 1 << 24, kMostFloats = std::uint64_t{1} << 31, kMostTables = 1 << 12;

template <class Element>
void read_array(WordReader& from, std::uint64_t count, std::vector<Element>& to) {
  auto const elements = from.array<Element>(count);
  to.assign(elements.begin(), elements.end());
}

std::size_t read_merged(WordReader& from, std::size_t num_merged) {
  auto const merged = from.word();
  base::expects(merged < num_merged, "there is no merged table " + std::to_string(merged));
  return merged;
}

}  // namespace

void write_indexed_rows(WordWriter& to, IndexedRows const& rows) {
  to.word(rows.indices.size()).word(rows.embeddings.size()).word(rows.states.size());
  for (auto const* const column : {&rows.indices, &rows.are_stored, &rows.counts, &rows.steps}) {
    to.array(std::span<std::uint32_t const>(*column));
  }
  to.array(std::span<float const>(rows.embeddings)).array(std::span<float const>(rows.states));
}

IndexedRows read_indexed_rows(WordReader& from) {
  IndexedRows rows;
  auto const num_rows = from.word_up_to(kMostRows, "the number of rows");
  auto const num_embeddings = from.word_up_to(kMostFloats, "the number of floats");
  auto const num_states = from.word_up_to(kMostFloats, "the number of states");
  bool const are_whole =
      num_rows == 0 ? num_embeddings + num_states == 0 : num_embeddings % num_rows + num_states % num_rows == 0;
  base::expects(are_whole, "rows have not equally many values");
  for (auto* const column : {&rows.indices, &rows.are_stored, &rows.counts, &rows.steps}) {
    read_array(from, num_rows, *column);
  }
  read_array(from, num_embeddings, rows.embeddings);
  read_array(from, num_states, rows.states);
  return rows;
}

Body encode_row_queries(std::span<RowQuery const> queries) {
  WordWriter to;
  to.word(queries.size());
  for (auto const& each : queries) to.word(each.merged).word(each.ids.size()).array(each.ids);
  return to.take();
}

std::vector<RowQuery> decode_row_queries(std::span<std::byte const> body, std::size_t num_merged) {
  WordReader from(body);
  std::vector<RowQuery> queries;
  auto const count = from.word_up_to(kMostTables, "the number of tables");
  for (std::uint64_t i = 0; i < count; ++i) {
    auto& query = queries.emplace_back();
    query.merged = read_merged(from, num_merged);
    query.ids = from.array<std::uint64_t>(from.word_up_to(kMostRows, "the number of ids"));
  }
  from.expect_end();
  return queries;
}

Body encode_indexed_rows(std::span<IndexedRows const> tables) {
  WordWriter to;
  to.word(tables.size());
  for (auto const& each : tables) write_indexed_rows(to, each);
  return to.take();
}

std::vector<IndexedRows> decode_indexed_rows(std::span<std::byte const> body) {
  WordReader from(body);
  std::vector<IndexedRows> tables;
  auto const count = from.word_up_to(kMostTables, "the number of tables");
  for (std::uint64_t i = 0; i < count; ++i) tables.push_back(read_indexed_rows(from));
  from.expect_end();
  return tables;
}

Body encode_rows_to_store(std::span<RowsToStore const> tables) {
  WordWriter to;
  to.word(tables.size());
  for (auto const& each : tables) {
    to.word(each.merged);
    write_indexed_rows(to, each.rows);
  }
  return to.take();
}

std::vector<RowsToStore> decode_rows_to_store(std::span<std::byte const> body, std::size_t num_merged) {
  WordReader from(body);
  std::vector<RowsToStore> tables;
  auto const count = from.word_up_to(kMostTables, "the number of tables");
  for (std::uint64_t i = 0; i < count; ++i) {
    auto const merged = read_merged(from, num_merged);
    tables.push_back({.merged = merged, .rows = read_indexed_rows(from)});
  }
  from.expect_end();
  return tables;
}

}  // namespace headway::hybrid
