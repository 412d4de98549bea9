// SPDX-License-Identifier: Apache-2.0

// Layout of the bodies, in words of 64 bits (words.hpp). There are M merged tables.
//
//   configure    compression (bit 0: ids, bit 1: values), then tables:
//   tables       number of merged tables; for each: options, number of tables, their ids (32 bits each), number of
//                names, names
//   generation   token, workers, staleness, first step, exact order, sums of parts, shared clock
//   lookup, read step, worker, samples, M numbers of keys
//                for each merged table: ids, tables (32 bits), counts (32 bits)
//                with compressed ids, for each: number of bytes; ids, tables and counts as packed numbers. 0 bytes:
//                they are plain, since that is smaller
//   part         step, worker; for each merged table: rate, number of floats, floats
//                with compressed values: halves and exponents in place of floats
//   void         step, worker, cause
//   status       the numbers of ServerStatus in their order; number of staleness counts, counts; samples
//                lists with their number: losses, waits of workers, merged tables
//                for each merged table: numbers, shares of its tables with their names
// A text has its length first.
// An answer to a lookup has the rows as floats, in the order of the keys, without sizes: the asker knows them. With
// compressed values it has for each merged table: number of values, halves, exponents.
// An answer to a part is empty, or the batch: its gradients were dropped, since they are not finite.

#include "headway/hybrid/server_messages.hpp"

#include "messages/packed_arrays.hpp"
#include "messages/words.hpp"

#include <array>
#include <concepts>
#include <type_traits>

namespace headway::hybrid {

namespace {

using embedding::MergedTable;

constexpr std::uint64_t kMostMergedTables = 1 << 12, kMostTables = 1 << 16, kMostKeys = std::uint64_t{1} << 31;
constexpr std::uint64_t kMost32 = 0xffffffff, kMostNameBytes = 1 << 12;
constexpr std::uint64_t kCompressesIds = 1, kCompressesValues = 2;

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
requires std::same_as<std::remove_const_t<Status>, TableStatus>
auto numbers_of(Status& table) {
  return std::array{&table.rows,     &table.cold_rows, &table.pending, &table.key_bytes, &table.row_bytes,
                    &table.inserted, &table.evicted,   &table.expired, &table.refused,   &table.dropped_gradients};
}
template <class Status>
requires std::same_as<std::remove_const_t<Status>, ServerStatus>
auto numbers_of(Status& status) {
  return std::array{&status.generation,
                    &status.num_applied,
                    &status.lookups,
                    &status.reads,
                    &status.parts,
                    &status.voids,
                    &status.held,
                    &status.void_not_finite,
                    &status.void_generation,
                    &status.rows,
                    &status.cold_rows,
                    &status.pending,
                    &status.bytes,
                    &status.evicted,
                    &status.refused,
                    &status.dropped_gradients,
                    &status.messages.plain_ids,
                    &status.messages.sent_ids,
                    &status.messages.plain_values,
                    &status.messages.sent_values};
}

}  // namespace

std::string_view to_string(LossCause cause) {
  constexpr std::array<std::string_view, kNumLossCauses> kNames{"no_batch", "skipped",    "overflow",
                                                                "refused",  "not_finite", "generation"};
  return kNames.at(static_cast<std::size_t>(cause));
}

std::string to_string(BatchId batch) {
  return "batch of step " + std::to_string(batch.step) + ", worker " + std::to_string(batch.worker);
}

Body encode_tables(std::span<MergedTable const> tables) {
  WordWriter to;
  to.word(tables.size());
  for (auto const& table : tables) {
    write_options(to, table);
    to.word(table.tables.size()).array(std::span<std::uint32_t const>(table.tables));
    to.word(table.names.size());
    for (auto const& name : table.names) to.text(name);
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
    auto const num_names = from.word_up_to(kMostTables, "the number of names");
    base::expects(num_names == 0 || num_names == ids.size(), "a merged table has not one name for each table");
    for (std::uint64_t name = 0; name < num_names; ++name) table.names.push_back(from.text(kMostNameBytes, "a name"));
    tables.push_back(std::move(table));
  }
  from.expect_end();
  return tables;
}

std::vector<std::size_t> half_dims_of(std::span<MergedTable const> tables, Compression compression) {
  std::vector<std::size_t> dims;
  for (auto const& table : tables) {
    if (compression.values) dims.push_back(table.options.dim);
  }
  return dims;
}

Body encode_configuration(std::span<MergedTable const> tables, Compression compression) {
  WordWriter to;
  auto const encoded = encode_tables(tables);
  to.word((compression.ids ? kCompressesIds : 0) | (compression.values ? kCompressesValues : 0));
  to.array(std::span<std::byte const>(encoded));
  return to.take();
}

DecodedConfiguration decode_configuration(std::span<std::byte const> body) {
  WordReader from(body);
  auto const bits = from.word_up_to(kCompressesIds | kCompressesValues, "the compression");
  return {.compression = {.ids = (bits & kCompressesIds) != 0, .values = (bits & kCompressesValues) != 0},
          .tables = body.subspan(sizeof bits)};
}

Body encode_generation(StepLedger::Options const& options, std::uint64_t token) {
  WordWriter to;
  to.word(token)
      .word(options.num_workers)
      .word(options.staleness)
      .word(options.first_step)
      .word(options.is_exact ? 1 : 0)
      .word(options.sums_parts ? 1 : 0)
      .word(options.shares_clock ? 1 : 0);
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
  options.sums_parts = from.word_up_to(1, "sums of parts") == 1;
  options.shares_clock = from.word_up_to(1, "the shared clock") == 1;
  from.expect_end();
  return {options, token};
}

namespace {

/// Bytes of plain keys.
std::size_t plain_bytes_of(std::size_t num_keys) {
  return num_keys * sizeof(std::uint64_t) + 2 * ((num_keys * sizeof(std::uint32_t) + 7) / 8 * 8);
}

}  // namespace

Body encode_lookup(BatchId batch, std::span<KeyList const> tables, std::uint64_t num_samples, Compression compression) {
  auto to = write_batch(batch);
  std::size_t num_bytes = (3 + tables.size()) * sizeof(std::uint64_t);
  for (auto const& each : tables) num_bytes += plain_bytes_of(each.ids.size());
  to.reserve(compression.ids ? 0 : num_bytes).word(num_samples);
  for (auto const& each : tables) to.word(each.ids.size());
  for (auto const& each : tables) {
    std::vector<std::byte> packed;
    if (compression.ids) {
      append_packed(each.ids, packed);
      append_packed(each.tables, packed);
      append_packed(each.counts, packed);
      if (packed.size() >= plain_bytes_of(each.ids.size())) packed.clear();
      write_bytes(to, packed);
    }
    if (packed.empty()) to.array(each.ids).array(each.tables).array(each.counts);
  }
  return to.take();
}

namespace {

/// Reads packed keys into `storage`. @returns views of them
KeyList unpack_keys(std::span<std::byte const> packed, std::size_t size, DecodedLookup::Storage& storage) {
  storage.ids.resize(size);
  storage.tables.resize(size);
  storage.counts.resize(size);
  auto rest = kernels::unpack(packed, std::span(storage.ids));
  rest = kernels::unpack(rest, std::span(storage.tables));
  rest = kernels::unpack(rest, std::span(storage.counts));
  base::expects(rest.empty(), "packed keys are too long");
  return {.ids = storage.ids, .tables = storage.tables, .counts = storage.counts};
}

}  // namespace

DecodedLookup decode_lookup(std::span<std::byte const> body, std::size_t num_tables, Compression compression,
                            std::size_t most_keys) {
  WordReader from(body);
  DecodedLookup lookup{.batch = read_batch(from), .tables = {}};
  lookup.num_samples = from.word_up_to(kMostKeys, "the number of samples");
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < num_tables; ++i) sizes.push_back(from.word_up_to(kMostKeys, "the number of keys"));
  std::size_t num_keys = 0;
  lookup.storage.resize(compression.ids ? num_tables : 0);
  for (std::size_t i = 0; i < num_tables; ++i) {
    auto const size = sizes[i];
    if (compression.ids) {
      num_keys += size;
      base::expects(num_keys <= most_keys, to_string(lookup.batch) + ": a lookup has over " +
                                               std::to_string(most_keys) + " keys, which is the limit");
      auto const packed = read_bytes(from);
      lookup.saved_bytes -= sizeof(std::uint64_t);
      if (!packed.empty()) {
        lookup.tables.push_back(unpack_keys(packed, size, lookup.storage[i]));
        lookup.saved_bytes +=
            static_cast<std::int64_t>(plain_bytes_of(size)) - static_cast<std::int64_t>(packed.size());
        continue;
      }
    }
    lookup.tables.push_back({.ids = from.array<std::uint64_t>(size),
                             .tables = from.array<std::uint32_t>(size),
                             .counts = from.array<std::uint32_t>(size)});
  }
  from.expect_end();
  return lookup;
}

Body encode_rows(std::span<std::size_t const> dims, std::span<std::size_t const> num_rows,
                 std::span<float const> rows) {
  WordWriter to;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    write_rows(to, rows.first(num_rows[i] * dims[i]), dims[i]);
    rows = rows.subspan(num_rows[i] * dims[i]);
  }
  return to.take();
}

void decode_rows(std::span<std::byte const> body, std::span<std::size_t const> dims, Compression compression,
                 std::span<std::span<float> const> outs) {
  auto const expect_same = [](bool condition) {
    base::expects(condition, "rows of another size came than were asked for");
  };
  if (compression.values) {
    WordReader from(body);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      RowsView const rows(from, dims[i]);
      expect_same(rows.size() == outs[i].size());
      rows.copy_to(outs[i]);
    }
    return from.expect_end();
  }
  std::span<float const> rows(reinterpret_cast<float const*>(body.data()), body.size() / sizeof(float));
  for (auto const out : outs) {
    expect_same(rows.size() >= out.size());
    std::ranges::copy(rows.first(out.size()), out.begin());
    rows = rows.subspan(out.size());
  }
  expect_same(rows.empty() && body.size() % sizeof(float) == 0);
}

std::int64_t saved_bytes_of(std::size_t num_rows, std::size_t dim) {
  return static_cast<std::int64_t>(num_rows * dim * sizeof(float)) -
         static_cast<std::int64_t>(kernels::half_bytes(num_rows, dim));
}

Body encode_part(BatchId batch, std::span<PartValues const> tables, std::span<std::size_t const> half_dims) {
  auto to = write_batch(batch);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    write_rows(to.real(tables[i].rate), tables[i].gradients, half_dims.empty() ? 0 : half_dims[i]);
  }
  return to.take();
}

DecodedPart decode_part(std::span<std::byte const> body, std::size_t num_tables,
                        std::span<std::size_t const> half_dims) {
  WordReader from(body);
  DecodedPart part{.batch = read_batch(from), .tables = {}, .storage = {}};
  for (std::size_t i = 0; i < num_tables; ++i) {
    PartValues values{.rate = from.real()};
    if (half_dims.empty()) {
      values.gradients = from.array<float>(from.word());
    } else {
      RowsView const rows(from, half_dims[i]);
      auto& decoded = part.storage.emplace_back(rows.size());
      rows.copy_to(decoded);
      values.gradients = decoded;
      part.saved_bytes += saved_bytes_of(rows.size() / half_dims[i], half_dims[i]);
    }
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

Body encode_void(BatchId batch, LossCause cause) {
  return write_batch(batch).word(static_cast<std::uint64_t>(cause)).take();
}

std::pair<BatchId, LossCause> decode_void(std::span<std::byte const> body) {
  WordReader from(body);
  BatchId const batch = read_batch(from);
  auto const cause = enumerator(from, LossCause::kGeneration, "the cause of a void notice");
  from.expect_end();
  return {batch, cause};
}

Body encode_status(ServerStatus const& status) {
  WordWriter to;
  for (auto const* const number : numbers_of(status)) to.word(*number);
  to.word(status.staleness.size()).array(std::span<std::uint64_t const>(status.staleness));
  to.word(status.samples).word(status.lost.size()).array(std::span<std::uint64_t const>(status.lost));
  to.word(status.waits.size());
  for (auto const& each : status.waits) to.word(each.num_lookups).word(each.nanoseconds);
  to.word(status.tables.size());
  for (auto const& table : status.tables) {
    for (auto const* const number : numbers_of(table)) to.word(*number);
    to.word(table.shares.size());
    for (auto const& each : table.shares) to.text(each.table).word(each.num_samples).word(each.top_lookups);
  }
  return to.take();
}

ServerStatus decode_status(std::span<std::byte const> body) {
  WordReader from(body);
  ServerStatus status;
  for (auto* const number : numbers_of(status)) *number = from.word();
  auto const counts =
      from.array<std::uint64_t>(from.word_up_to(std::uint64_t{StepLedger::kMostStaleness} + 1, "the staleness"));
  status.staleness.assign(counts.begin(), counts.end());
  status.samples = from.word();
  auto const lost = from.array<std::uint64_t>(from.word_up_to(kNumLossCauses, "the number of causes"));
  status.lost.assign(lost.begin(), lost.end());
  auto const num_waits = from.word_up_to(StepLedger::kMostWorkers, "the number of workers");
  for (std::uint64_t i = 0; i < num_waits; ++i) {
    auto& each = status.waits.emplace_back();
    each.num_lookups = from.word();
    each.nanoseconds = from.word();
  }
  auto const num_tables = from.word_up_to(kMostMergedTables, "the number of merged tables");
  for (std::uint64_t i = 0; i < num_tables; ++i) {
    auto& table = status.tables.emplace_back();
    for (auto* const number : numbers_of(table)) *number = from.word();
    auto const num_shares = from.word_up_to(kMostTables, "the number of tables");
    for (std::uint64_t share = 0; share < num_shares; ++share) {
      auto& each = table.shares.emplace_back();
      each.table = from.text(kMostNameBytes, "a name");
      each.num_samples = from.word();
      each.top_lookups = from.word();
    }
  }
  from.expect_end();
  return status;
}

}  // namespace headway::hybrid
