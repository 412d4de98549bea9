#include "cpu/cpu_table.hpp"

#include "headway/comm/status.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>

namespace headway::embedding {

namespace {

constexpr std::size_t kLineBytes = 64, kMostDim = std::size_t{1} << 20;
constexpr std::size_t kKeysAhead = StripedBatch::kKeysAhead, kRowsAhead = 8;

std::size_t row_bytes_of(std::size_t dim) {
  comm::expects(dim >= 1 && dim <= kMostDim,
                "a table needs a dim from 1 to " + std::to_string(kMostDim) + ", not " + std::to_string(dim));
  return (dim * sizeof(float) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

/// All lines of a vector, so that reading it soon after is faster.
void prefetch(std::span<float const> vector) {
  auto const bytes = std::as_bytes(vector);
  for (std::size_t line = 0; line < bytes.size(); line += kLineBytes) __builtin_prefetch(bytes.data() + line);
}

[[noreturn]] void refuse_row(RowId row) {
  throw comm::UsageError("row " + std::to_string(static_cast<std::uint32_t>(row)) + " is not of this table");
}

}  // namespace

std::unique_ptr<Table> make_cpu_table(TableOptions const& options) { return std::make_unique<CpuTable>(options); }

CpuTable::CpuTable(TableOptions const& options)
    : options_(options), workers_(options.num_threads), store_(row_bytes_of(options.dim)) {
  options_.max_rows = std::min(options.max_rows, RowStore::kMostRows);
  stripes_ = make_stripes();
}

std::vector<CpuTable::Stripe> CpuTable::make_stripes() {
  std::vector<Stripe> stripes;
  stripes.reserve(StripeMap::kCount);
  for (std::size_t i = 0; i < StripeMap::kCount; ++i) stripes.emplace_back(segments_, store_);
  return stripes;
}

std::size_t CpuTable::size() const {
  std::shared_lock const lock(mutex_);
  return count_keys();
}

std::size_t CpuTable::count_keys() const {
  std::uint64_t sum = 0;
  for (auto const& stripe : stripes_) sum += stripe.inserted - stripe.erased;
  return sum;
}

TableStatistics CpuTable::statistics() const {
  std::shared_lock const lock(mutex_);
  TableStatistics sum{.refused = num_refused_};
  for (auto const& stripe : stripes_) {
    sum.inserted += stripe.inserted;
    sum.erased += stripe.erased;
  }
  return sum;
}

// Reading

void CpuTable::find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const {
  expect_one_each(keys, rows.size(), "rows");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::shared_lock const lock(mutex_);
  workers_.in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    in_step(keys, first, end, [&](std::size_t i, Hash hash) {
      rows[i] = find_row(keys[i], hash);
      if (!statuses.empty()) statuses[i] = rows[i] == RowId::kNone ? KeyStatus::kAbsent : KeyStatus::kFound;
    });
  });
}

void CpuTable::gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim;
  expect_vectors(keys, out.size(), "out");
  std::shared_lock const lock(mutex_);
  std::size_t const num_rows = store_.num_rows();
  workers_.in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      if (i + kRowsAhead < end && static_cast<std::uint32_t>(rows[i + kRowsAhead]) < num_rows) {
        prefetch({vector_of(rows[i + kRowsAhead]), dim});
      }
      auto const vector = out.subspan(i * dim, dim);
      if (rows[i] == RowId::kNone) {
        options_.initializer.fill(keys[i], vector);
      } else {
        if (static_cast<std::uint32_t>(rows[i]) >= num_rows) refuse_row(rows[i]);
        std::memcpy(vector.data(), vector_of(rows[i]), vector.size_bytes());
      }
    }
  });
}

RowId CpuTable::find_row(Key key, Hash hash) const {
  return RowId{static_cast<std::uint32_t>(stripes_[stripe_map_.of(hash)].index.find(key, hash))};
}

template <class Visit>
void CpuTable::in_step(Keys const& keys, std::size_t first, std::size_t end, Visit visit) const {
  std::array<Hash, kKeysAhead> ahead;
  for (std::size_t i = first; i < end + kKeysAhead; ++i) {
    auto& hash = ahead[i % kKeysAhead];
    if (i >= first + kKeysAhead) visit(i - kKeysAhead, hash);
    if (i >= end) continue;
    hash = hash_of(keys[i]);
    stripes_[stripe_map_.of(hash)].index.prefetch(hash);
  }
}

// Changing

void CpuTable::find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) {
  expect_one_each(keys, rows.size(), "rows");
  insert(
      keys, statuses, [](std::size_t) {}, [&](std::size_t i, RowId row) { rows[i] = row; });
}

void CpuTable::insert_or_assign(Keys const& keys, std::span<float const> vectors, std::span<KeyStatus> statuses) {
  std::size_t const dim = options_.dim;
  expect_vectors(keys, vectors.size(), "vectors");
  insert(
      keys, statuses, [&](std::size_t i) { prefetch(vectors.subspan(i * dim, dim)); },
      [&](std::size_t i, RowId row) {
        if (row != RowId::kNone) std::memcpy(vector_of(row), &vectors[i * dim], dim * sizeof(float));
      });
}

template <class Announce, class Visit>
void CpuTable::insert(Keys const& keys, std::span<KeyStatus> statuses, Announce announce, Visit visit) {
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, workers_);
  std::size_t const room = options_.max_rows - count_keys();
  refuse_what_does_not_fit(keys, room);
  store_.reserve(std::min(keys.size(), room), StripeMap::kCount);
  in_stripes(announce, [&](Stripe& stripe, std::size_t i, Hash hash) {
    Key const key = keys[i];
    auto status = KeyStatus::kFound;
    auto const word = stripe.index.find_or_insert(key, hash, [&] {
      if (!is_refused_.empty() && is_refused_[i]) {
        status = KeyStatus::kNoRoom;
        return RowWord::kEmpty;
      }
      status = KeyStatus::kInserted;
      auto const row = stripe.rows.allocate();
      assert(row != RowId::kNone && "rows were reserved");
      options_.initializer.fill(key, {vector_of(row), options_.dim});
      store_.notes(row) = {};
      ++stripe.inserted;
      return RowWord{static_cast<std::uint32_t>(row)};
    });
    if (!statuses.empty()) statuses[i] = status;
    visit(i, RowId{static_cast<std::uint32_t>(word)});
  });
}

void CpuTable::refuse_what_does_not_fit(Keys const& keys, std::size_t room) {
  is_refused_.clear();
  if (keys.size() <= room) return;
  is_refused_.resize(keys.size());
  is_absent_.resize(keys.size());
  workers_.in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    in_step(keys, first, end,
            [&](std::size_t i, Hash hash) { is_absent_[i] = find_row(keys[i], hash) == RowId::kNone; });
  });
  struct HashKey {
    std::size_t operator()(Key key) const { return hash_of(key).low; }
  };
  std::unordered_set<Key, HashKey> admitted;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (is_absent_[i] == 0 || admitted.contains(keys[i])) continue;
    if (room == 0) {
      is_refused_[i] = true;
      ++num_refused_;
    } else {
      admitted.insert(keys[i]);
      --room;
    }
  }
}

void CpuTable::erase(Keys const& keys) {
  expect_one_each(keys, keys.size(), "keys");
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, workers_);
  in_stripes([](std::size_t) {},
             [&](Stripe& stripe, std::size_t i, Hash hash) {
               auto const word = stripe.index.erase(keys[i], hash);
               if (word == RowWord::kEmpty) return;
               stripe.rows.free(RowId{static_cast<std::uint32_t>(word)});
               ++stripe.erased;
             });
}

void CpuTable::clear() {
  std::lock_guard const lock(mutex_);
  auto fresh = make_stripes();
  for (std::size_t i = 0; i < fresh.size(); ++i) fresh[i].inserted = fresh[i].erased = stripes_[i].inserted;
  stripes_ = std::move(fresh);
  store_.clear();
  segments_.trim();
}

template <class Announce, class Visit>
void CpuTable::in_stripes(Announce announce, Visit visit) {
  batch_.for_each_stripe(workers_, [&](std::size_t number) {
    auto& stripe = stripes_[number];
    auto const keys = batch_.of_stripe(number);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      if (j + kKeysAhead < keys.size()) stripe.index.prefetch(batch_.hash(keys[j + kKeysAhead]));
      if (j + kRowsAhead < keys.size()) announce(keys[j + kRowsAhead]);
      visit(stripe, keys[j], batch_.hash(keys[j]));
    }
  });
}

void CpuTable::expect_one_each(Keys const& keys, std::size_t count, char const* what) {
  comm::expects(count == keys.size() && (keys.tables.empty() || keys.tables.size() == keys.size()),
                std::to_string(keys.size()) + " keys have " + std::to_string(count) + " " + what + " and " +
                    std::to_string(keys.tables.size()) + " tables");
}

void CpuTable::expect_vectors(Keys const& keys, std::size_t num_values, char const* what) const {
  comm::expects(num_values == keys.size() * options_.dim, std::string(what) + ": " + std::to_string(num_values) +
                                                              " values for " + std::to_string(keys.size()) +
                                                              " keys of " + std::to_string(options_.dim));
}

}  // namespace headway::embedding
