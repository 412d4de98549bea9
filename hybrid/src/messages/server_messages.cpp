// SPDX-License-Identifier: Apache-2.0

// Layout of the bodies, in words of 64 bits (words.hpp). There are M merged tables.
//
//   configure    number of merged tables; for each: options, number of tables, their ids (32 bits each)
//   generation   token, workers, staleness, first step, exact order
//   lookup, read step, worker, M numbers of keys; for each merged table: ids, tables (32 bits), counts (32 bits)
//   part         step, worker; for each merged table: rate, number of floats, floats
//   void         step, worker
//   status       the numbers of ServerStatus in their order, number of staleness counts, counts
// An answer to a lookup has the rows as floats, in the order of the keys, without sizes: the asker knows them.

#include "headway/hybrid/server_messages.hpp"

#include "messages/words.hpp"

#include <array>

namespace headway::hybrid {

namespace {

using embedding::MergedTable;

constexpr std::uint64_t kMostMergedTables = 1 << 12, kMostTables = 1 << 16, kMostKeys = std::uint64_t{1} << 31;
constexpr std::uint64_t kMost32 = 0xffffffff;

void write_options(WordWriter& to, MergedTable const& table) {
  auto const& options = table.options;
  auto const& values = options.initializer.values();
  auto const& optimizer = options.optimizer;
  to.word(options.dim).word(static_cast<std::uint64_t>(values.law)).real(values.base).real(values.width);
  to.word(values.seed).word(static_cast<std::uint64_t>(optimizer.kind)).real(optimizer.epsilon);
  to.real(optimizer.beta1).real(optimizer.beta2).real(optimizer.initial_accumulator).real(optimizer.weight_decay);
  to.word(static_cast<std::uint64_t>(optimizer.decay)).word(options.max_rows);
  to.word(static_cast<std::uint64_t>(options.eviction)).word(options.high_water).word(options.low_water);
  to.word(options.eviction_batch).word(options.time_to_live).word(options.min_count).word(options.max_pending);
  to.word(options.hot_count).word(table.reads_unknown_as_zeros ? 1 : 0);
}

/// A 32-bit number.
std::uint32_t narrow(WordReader& from, char const* name) {
  return static_cast<std::uint32_t>(from.word_up_to(kMost32, name));
}

template <class Enum>
Enum enumerator(WordReader& from, Enum last, char const* name) {
  return static_cast<Enum>(from.word_up_to(static_cast<std::uint64_t>(last), name));
}

MergedTable read_options(WordReader& from) {
  MergedTable table;
  auto& options = table.options;
  options.dim = from.word();
  embedding::InitialValues values;
  values.law = enumerator(from, embedding::InitialValues::Law::kNormal, "the law of initial values");
  values.base = static_cast<float>(from.real());
  values.width = static_cast<float>(from.real());
  values.seed = from.word();
  options.initializer = embedding::Initializer::of(values);
  auto& optimizer = options.optimizer;
  optimizer.kind = enumerator(from, kernels::OptimizerKind::kRowWiseAdam, "the optimizer");
  optimizer.epsilon = from.real();
  optimizer.beta1 = from.real();
  optimizer.beta2 = from.real();
  optimizer.initial_accumulator = from.real();
  optimizer.weight_decay = from.real();
  optimizer.decay = enumerator(from, kernels::WeightDecay::kDecoupled, "the weight decay");
  options.max_rows = from.word();
  options.eviction = enumerator(from, embedding::EvictionPolicy::kLeastFrequentlyUsed, "the eviction policy");
  options.high_water = from.word();
  options.low_water = from.word();
  options.eviction_batch = from.word();
  options.time_to_live = narrow(from, "time_to_live");
  options.min_count = narrow(from, "min_count");
  options.max_pending = from.word();
  options.hot_count = narrow(from, "hot_count");
  table.reads_unknown_as_zeros = from.word_up_to(1, "reads_unknown_as_zeros") == 1;
  return table;
}

WordWriter write_batch(BatchId batch) {
  WordWriter to;
  to.word(batch.step).word(batch.worker);
  return to;
}

BatchId read_batch(WordReader& from) {
  BatchId batch;
  batch.step = from.word();
  batch.worker = narrow(from, "the dense worker");
  return batch;
}

/// The numbers of a status, in the order of the message.
template <class Status>
auto numbers_of(Status& status) {
  return std::array{&status.generation,      &status.num_applied, &status.lookups,   &status.reads,
                    &status.parts,           &status.voids,       &status.held,      &status.void_not_finite,
                    &status.void_generation, &status.rows,        &status.cold_rows, &status.pending,
                    &status.bytes,           &status.evicted,     &status.refused,   &status.dropped_gradients};
}

}  // namespace

std::string to_string(BatchId batch) {
  return "batch of step " + std::to_string(batch.step) + ", worker " + std::to_string(batch.worker);
}

Body encode_tables(std::span<MergedTable const> tables) {
  WordWriter to;
  to.word(tables.size());
  for (auto const& table : tables) {
    write_options(to, table);
    to.word(table.tables.size()).array(std::span<std::uint32_t const>(table.tables));
  }
  return to.take();
}

std::vector<MergedTable> decode_tables(std::span<std::byte const> body) {
  WordReader from(body);
  std::vector<MergedTable> tables;
  auto const count = from.word_up_to(kMostMergedTables, "the number of merged tables");
  for (std::uint64_t i = 0; i < count; ++i) {
    auto table = read_options(from);
    auto const ids = from.array<std::uint32_t>(from.word_up_to(kMostTables, "the number of tables"));
    base::expects(!ids.empty(), "a merged table has no tables");
    table.tables.assign(ids.begin(), ids.end());
    tables.push_back(std::move(table));
  }
  from.expect_end();
  return tables;
}

Body encode_generation(StepLedger::Options const& options, std::uint64_t token) {
  WordWriter to;
  to.word(token)
      .word(options.num_workers)
      .word(options.staleness)
      .word(options.first_step)
      .word(options.is_exact ? 1 : 0);
  return to.take();
}

std::pair<StepLedger::Options, std::uint64_t> decode_generation(std::span<std::byte const> body) {
  WordReader from(body);
  auto const token = from.word();
  StepLedger::Options options;
  options.num_workers = static_cast<std::uint32_t>(from.word_up_to(StepLedger::kMostWorkers, "the number of workers"));
  options.staleness = static_cast<std::uint32_t>(from.word_up_to(StepLedger::kMostStaleness, "the staleness"));
  options.first_step = from.word();
  options.is_exact = from.word_up_to(1, "exact order") == 1;
  from.expect_end();
  return {options, token};
}

Body encode_lookup(BatchId batch, std::span<KeyList const> tables) {
  auto to = write_batch(batch);
  for (auto const& each : tables) to.word(each.ids.size());
  for (auto const& each : tables) to.array(each.ids).array(each.tables).array(each.counts);
  return to.take();
}

DecodedLookup decode_lookup(std::span<std::byte const> body, std::size_t num_tables) {
  WordReader from(body);
  DecodedLookup lookup{.batch = read_batch(from), .tables = {}};
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < num_tables; ++i) sizes.push_back(from.word_up_to(kMostKeys, "the number of keys"));
  for (auto const size : sizes) {
    lookup.tables.push_back({.ids = from.array<std::uint64_t>(size),
                             .tables = from.array<std::uint32_t>(size),
                             .counts = from.array<std::uint32_t>(size)});
  }
  from.expect_end();
  return lookup;
}

Body encode_part(BatchId batch, std::span<PartValues const> tables) {
  auto to = write_batch(batch);
  for (auto const& each : tables) to.real(each.rate).word(each.gradients.size()).array(each.gradients);
  return to.take();
}

DecodedPart decode_part(std::span<std::byte const> body, std::size_t num_tables) {
  WordReader from(body);
  DecodedPart part{.batch = read_batch(from), .tables = {}};
  for (std::size_t i = 0; i < num_tables; ++i) {
    PartValues values{.rate = from.real()};
    values.gradients = from.array<float>(from.word());
    part.tables.push_back(values);
  }
  from.expect_end();
  return part;
}

Body encode_batch(BatchId batch) { return write_batch(batch).take(); }

BatchId decode_batch(std::span<std::byte const> body) {
  WordReader from(body);
  BatchId const batch = read_batch(from);
  from.expect_end();
  return batch;
}

Body encode_status(ServerStatus const& status) {
  WordWriter to;
  for (auto const* const number : numbers_of(status)) to.word(*number);
  to.word(status.staleness.size()).array(std::span<std::uint64_t const>(status.staleness));
  return to.take();
}

ServerStatus decode_status(std::span<std::byte const> body) {
  WordReader from(body);
  ServerStatus status;
  for (auto* const number : numbers_of(status)) *number = from.word();
  auto const counts =
      from.array<std::uint64_t>(from.word_up_to(std::uint64_t{StepLedger::kMostStaleness} + 1, "the staleness"));
  status.staleness.assign(counts.begin(), counts.end());
  from.expect_end();
  return status;
}

}  // namespace headway::hybrid
