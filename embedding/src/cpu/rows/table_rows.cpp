// SPDX-License-Identifier: Apache-2.0

// Contents of rows on the CPU. Rows are stored in float32, or in bfloat16 if their keys are rare (cold rows), and are
// read and written as float32. The layout of a row is its embedding (dim numbers), then its optimizer state in float32.
// Its metadata, which are lookup count, step of the last lookup and state of a row-wise optimizer, are apart
// (row_store.hpp).

#include "cpu/rows/table_rows.hpp"

#include "headway/base/status.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

namespace headway::embedding {

namespace {

constexpr std::size_t kLineBytes = 64;

constexpr std::size_t number_of(Precision precision) { return static_cast<std::size_t>(precision); }

}  // namespace

TableRows::TableRows(std::size_t dim, kernels::RowOptimizer const& optimizer)
    : dim_(dim),
      optimizer_(optimizer),
      state_begins_{dim * sizeof(float), round_up(dim * sizeof(Bfloat16), sizeof(float))},
      stores_{RowStore(padded(state_begins_[0] + optimizer.state_size(dim) * sizeof(float))),
              RowStore(padded(state_begins_[1] + optimizer.state_size(dim) * sizeof(float)))} {}

void TableRows::reserve(Precision precision, std::size_t num_rows, std::size_t num_allocators) {
  stores_[number_of(precision)].reserve(num_rows, num_allocators);
}

void TableRows::clear() {
  for (auto& store : stores_) store.clear();
}

RowId TableRows::Allocator::allocate(Precision precision) {
  RowId const id = allocators_[number_of(precision)].allocate();
  return id == RowId::kNone ? id : row_id(precision, static_cast<std::uint32_t>(id));
}

void TableRows::Allocator::free(RowId id) noexcept { allocators_[number_of(precision_of(id))].free(plain(id)); }

void TableRows::prefetch(RowId id) const {
  auto const* const row = store_of(id).row(plain(id));
  for (std::size_t line = 0; line < store_of(id).row_bytes(); line += kLineBytes) __builtin_prefetch(row + line, 0, 2);
}

void TableRows::read(RowId id, std::span<float> out) const {
  if (precision_of(id) == Precision::kFloat32) {
    std::memcpy(out.data(), embedding(id).data(), out.size_bytes());
  } else {
    std::ranges::transform(cold_embedding(id), out.begin(), widen);
  }
}

void TableRows::write(RowId id, std::span<float const> values) {
  if (precision_of(id) == Precision::kFloat32) {
    std::memcpy(embedding(id).data(), values.data(), values.size_bytes());
  } else {
    std::ranges::transform(values, cold_embedding(id).begin(), round_to_nearest);
  }
}

void TableRows::write_stochastically(RowId id, Key key, std::uint64_t step, std::span<float const> values) {
  auto const out = cold_embedding(id);
  for (std::size_t first = 0; first < dim_; first += kColumnsPerRounding) {
    auto const words = rounding_words(key, static_cast<std::uint32_t>(first / kColumnsPerRounding), step);
    for (std::size_t i = first; i < std::min(first + kColumnsPerRounding, dim_); ++i) {
      out[i] = round_stochastically(values[i], rounding_bits(words, static_cast<std::uint32_t>(i - first)));
    }
  }
}

std::span<float> TableRows::state(RowId id) const {
  auto* const row = store_of(id).row(plain(id));
  return {reinterpret_cast<float*>(row + state_begins_[number_of(precision_of(id))]), optimizer_.state_size(dim_)};
}

void TableRows::initialise(RowId id, Key key, Initializer const& initializer, std::span<float> scratch) {
  if (precision_of(id) == Precision::kFloat32) {
    initializer.fill(key, embedding(id));
  } else {
    initializer.fill(key, scratch);
    write(id, scratch);
  }
  std::ranges::fill(state(id), optimizer_.initial_state());
  metadata(id) = {.count = 0, .step = 0, .state = optimizer_.initial_state()};
}

void TableRows::move(RowId from, RowId to, Key key, std::uint64_t step, std::span<float> scratch) {
  read(from, scratch);
  if (precision_of(to) == Precision::kFloat32) {
    write(to, scratch);
  } else {
    write_stochastically(to, key, step, scratch);
  }
  std::ranges::copy(state(from), state(to).begin());
  metadata(to) = metadata(from);
}

void TableRows::update(RowId id, Key key, Step const& step, std::span<float const> gradient, std::span<float> scratch) {
  // A float32 row is updated in place. A bfloat16 row is widened to scratch, updated there, and rounded back.
  bool const is_cold = precision_of(id) == Precision::kBfloat16;
  if (is_cold) read(id, scratch);
  optimizer_.update(step.factors, is_cold ? scratch : embedding(id), state(id), metadata(id).state, gradient);
  if (is_cold) write_stochastically(id, key, step.number, scratch);
}

std::size_t TableRows::num_bytes() const {
  std::size_t sum = 0;
  for (auto const& store : stores_) sum += store.num_bytes();
  return sum;
}

}  // namespace headway::embedding
