// SPDX-License-Identifier: Apache-2.0

// Insertion on the GPU: find_or_insert(), insert_or_assign() and imports. The kernels are in insertion_kernels.cuh.
// A key gets a row once it was looked up min_count times; until then it is pending: the key index has its count.
//
// Idea: if the batch has no duplicates and surely fits below the row limit, the two insertion kernels run on it as it
// is. Otherwise insert_carefully() plans first, all on the device: deduplicate the batch; find the position at which
// each unique key reaches min_count (its crossing); number the crossings in batch order; evict if rows are missing and
// a policy allows it; refuse the keys whose number is beyond the room left. The kernels then run on the unique keys,
// and a last kernel expands rows and statuses to the batch.
//
// Example: min_count 3, batch 7 7 8 7, one lookup each. Key 7 has 1 pending lookup, key 8 is new.
//   Key 7 counts 2 at position 0 and 3 at position 1: crossing 1, crossing count 3. Key 8 counts 1: crossing kNever.
//   Statuses: pending, inserted, pending, found. The row of key 7 gets count 4.
//   With no room for a row, the statuses of key 7 are pending, no room, no room, and two refusals are counted.
//
// Invariants: the same keys get rows, and with the same statuses, as in the CPU table. Near the limit the first keys of
//   the batch get the rows that are left.
//   The host never waits for the plan: it only bounds the number of rows (num_rows_at_most()).
// Complexity: O(keys). A plan adds a deduplication (hash table and radix sort) and a prefix sum over the batch.
// Source: docs/design/cuda_tables.md, "Near a limit a batch is planned first".

#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"
#include "cuda/table/insertion_kernels.cuh"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"

#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace headway::embedding {

namespace {

/// The last record of each key, on the host: ids, tables and counts.
Records last_records(Records const& records) {
  struct HashKey {
    std::size_t operator()(Key key) const { return hash_of(key).low; }
  };
  std::unordered_map<Key, std::size_t, HashKey> index_of;
  Records last;
  auto const keys = records.keys();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    auto const [at, is_new] = index_of.try_emplace(keys[i], last.ids.size());
    if (!is_new) {
      last.counts[at->second] = records.counts[i];
      continue;
    }
    last.ids.push_back(records.ids[i]);
    last.tables.push_back(records.tables[i]);
    last.counts.push_back(records.counts[i]);
  }
  return last;
}

/// Address of the word of a pending key, or of the slot just claimed for it (kClaimed). nullptr if the key has a row,
/// or if its stripe, the part of the key index that its hash selects, is full (counted as refused).
__device__ RowWord* claim_or_find_pending(IndexView const& index, Key key, TableState& state) {
  Hash const hash = hash_of(key);
  // A lost compare-and-swap means that another key took the free slot: search again from the start of the probe.
  while (true) {
    auto const place = find_place(index.walk(hash), key, LoadNewest());
    if (place.bucket == nullptr) {  // Stripe full: only ids that were constructed to collide can cause this.
      count_one(&state.statistics.refused);
      return nullptr;
    }
    if (is_row(place.word)) return nullptr;
    if (is_pending(place.word)) return place.address();
    auto* const word = reinterpret_cast<std::uint32_t*>(place.address());
    auto const expected = static_cast<std::uint32_t>(place.word);
    if (atomicCAS(word, expected, static_cast<std::uint32_t>(kClaimed)) != expected) continue;
    place.bucket->set_key(static_cast<std::size_t>(place.slot), key);
    std::uint32_t const stripe = index.stripe_of(hash);
    if (place.word == RowWord::kEmpty) atomicAdd(&state.used[stripe], 1U);
    atomicAdd(&state.live[stripe], 1U);
    return place.address();
  }
}

template <class T>
void fill_with_zeros(DeviceBuffer<T> const& buffer, cudaStream_t stream) {
  base::check_cuda(cudaMemsetAsync(buffer.data(), 0, buffer.size() * sizeof(T), stream), "cudaMemsetAsync");
}

}  // namespace

/// Plan of a batch, in device memory: its unique keys and the Decisions on them.
struct CudaTable::Plan {
  Plan(Keys const& keys, cudaStream_t stream)
      : num_keys(keys.size()),
        ids(num_keys, stream),
        tables(keys.tables.empty() ? 0 : num_keys, stream),
        counts(num_keys, stream),
        inverse_indices(num_keys, stream),
        csr_indices(num_keys, stream),
        csr_offsets(num_keys + 1, stream),
        size(1, stream),
        words(num_keys, stream),
        crossings(num_keys, stream),
        crossing_counts(num_keys, stream),
        firsts(num_keys, stream),
        first_counts(num_keys, stream),
        are_refused(num_keys, stream),
        unique{.ids = ids.span(),
               .tables = tables.span(),
               .table = keys.table,
               .counts = counts.span(),
               .inverse_indices = inverse_indices.span(),
               .csr_indices = csr_indices.span(),
               .csr_offsets = csr_offsets.span(),
               .size = size.data()} {
    fill_with_zeros(are_refused, stream);
  }

  [[nodiscard]] Decisions decisions() const {
    return {.crossings = crossings.data(),
            .crossing_counts = crossing_counts.data(),
            .firsts = firsts.data(),
            .first_counts = first_counts.data(),
            .are_refused = are_refused.data()};
  }

  std::size_t num_keys;
  DeviceBuffer<std::uint64_t> ids;
  DeviceBuffer<std::uint32_t> tables, counts, inverse_indices, csr_indices, csr_offsets, size;
  DeviceBuffer<RowWord> words;  ///< (unique keys) Words in the key index before the insertion.
  /// (unique keys) Batch position of the crossing, and the count there; first position, and its count (the count of the
  /// last position if Rules::last_holds).
  DeviceBuffer<std::uint32_t> crossings, crossing_counts, firsts, first_counts;
  DeviceBuffer<std::uint8_t> are_refused;
  CudaUniqueKeys unique;
};

/// Predicate: is batch position i the last occurrence of its key? Always true for a batch without duplicates.
struct CudaTable::LastOfEach {
  std::unique_ptr<Plan> plan;  ///< Unique keys of the batch; nullptr if the batch has no duplicates.

  struct View {
    std::uint32_t const* inverse_indices;
    std::uint32_t const* csr_indices;
    std::uint32_t const* csr_offsets;

    __device__ bool operator()(std::uint32_t i) const {
      return inverse_indices == nullptr || csr_indices[csr_offsets[inverse_indices[i] + 1] - 1] == i;
    }
  };
  [[nodiscard]] View view() const {
    if (plan == nullptr) return {};
    return {plan->inverse_indices.data(), plan->csr_indices.data(), plan->csr_offsets.data()};
  }
};

CudaTable::LastOfEach CudaTable::last_of_each(Keys const& keys, cudaStream_t stream) {
  if (keys.are_unique || keys.size() == 0) return {};
  LastOfEach last{std::make_unique<Plan>(keys, stream)};
  deduplicator_->deduplicate(keys, last.plan->unique);
  return last;
}

void CudaTable::find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) {
  // All three checks compare host-side sizes. The values behind the pointers are on the device and are not looked at.
  expect_one_each(keys, rows.size(), "rows");
  expect_one_each(keys, keys.counts.empty() ? keys.size() : keys.counts.size(), "counts");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  Call const call(*this);
  DeviceBuffer<KeyStatus> own_statuses(statuses.empty() ? keys.size() : 0, call.stream());
  insert(keys, {.min_count = options_.min_count},
         {.rows = rows.data(), .statuses = statuses.empty() ? own_statuses.data() : statuses.data()}, call.stream());
}

void CudaTable::insert_or_assign(Keys const& keys, std::span<float const> embeddings, std::span<KeyStatus> statuses) {
  expect_values(keys, embeddings.size(), options_.dim, "embeddings");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  Call const call(*this);
  DeviceBuffer<RowId> rows(keys.size(), call.stream());
  DeviceBuffer<KeyStatus> own_statuses(statuses.empty() ? keys.size() : 0, call.stream());
  Keys without_counts = keys;
  without_counts.counts = {};
  insert(without_counts, {.default_count = 0, .min_count = 0, .fills_embeddings = false},
         {.rows = rows.data(), .statuses = statuses.empty() ? own_statuses.data() : statuses.data()}, call.stream());
  write_embeddings(keys, rows.span(), embeddings, last_of_each(keys, call.stream()), call.stream());
}

void CudaTable::insert(Keys const& keys, Rules const& rules, Outcome const& outcome, cudaStream_t stream) {
  if (keys.size() == 0) return;
  if (options_.time_to_live > 0 && rules.is_limited) remove_expired_async(keys, stream);
  // A bound, not the exact number: if it says that all keys fit, they do. If not, the planned path finds out.
  bool const has_room = num_rows_at_most() + keys.size() <= most_rows(rules);
  if (options_.hot_count > 0) ++generation_;  // Rows may move from bfloat16 to float32: their ids change.
  prepare(keys.size(), rules, stream);
  if (keys.are_unique && has_room) {
    insert_unique(view_of(keys, rules.default_count), rules, nullptr, outcome, stream);
  } else {
    insert_carefully(keys, rules, outcome, stream);
  }
  mirror_.record(state_.data(), keys.size(), stream);
}

void CudaTable::insert_unique(KeysView const& keys, Rules const& rules, Plan const* plan, Outcome const& outcome,
                              cudaStream_t stream) {
  DeviceBuffer<RowWord*> words(keys.size.most, stream);
  InsertionArgs const args{.index = index(),
                           .rows = rows_.view(),
                           .free_lists = rows_.free_lists(),
                           .state = state_.data(),
                           .keys = keys,
                           .decisions = plan == nullptr ? Decisions{} : plan->decisions(),
                           .initial_values = options_.initializer.values(),
                           .initial_state = optimizer_.initial_state(),
                           .fills_embeddings = rules.fills_embeddings,
                           .step = step_,
                           .min_count = rules.min_count,
                           .hot_count = options_.hot_count,
                           .row_ids = outcome.rows,
                           .statuses = outcome.statuses,
                           .words = words.data()};
  // One grid for the most keys there may be. The device may know of fewer (num_known): the other threads only mark
  // kAbsent. The first kernel claims slots, the second assigns rows and writes statuses.
  std::uint32_t const blocks = (keys.size.most + kBlockThreads - 1) / kBlockThreads;
  claim_kernel<<<blocks, kBlockThreads, 0, stream>>>(args);
  base::check_launch("claim_kernel");
  settle_insertion_kernel<<<blocks, kBlockThreads, 0, stream>>>(args);
  base::check_launch("settle_insertion_kernel");
  settle_free_rows_async(state_.data(), rows_.free_lists(), stream);
}

void CudaTable::insert_carefully(Keys const& keys, Rules const& rules, Outcome const& outcome, cudaStream_t stream) {
  // Every key of the batch gets an entry in the plan's arrays, since the host does not know how many are unique.
  Plan plan(keys, stream);
  if (keys.are_unique) {
    deduplicator_->from_unique(keys, plan.unique);
  } else {
    deduplicator_->deduplicate(keys, plan.unique);
  }
  auto const unique = view_of(plan.unique.keys());
  for_each_async(
      plan.num_keys,
      [unique, index = index(), words = plan.words.data()] __device__(std::uint64_t u) {
        if (u < unique.size()) words[u] = find_word(index, unique.key(static_cast<std::uint32_t>(u)));
      },
      stream, "find words");
  for_each_async(
      plan.num_keys,
      [unique, batch = view_of(keys, rules.default_count), min_count = rules.min_count, words = plan.words.data(),
       csr_indices = plan.csr_indices.data(), csr_offsets = plan.csr_offsets.data(), crossings = plan.crossings.data(),
       crossing_counts = plan.crossing_counts.data(), firsts = plan.firsts.data(),
       first_counts = plan.first_counts.data(), last_holds = rules.last_holds] __device__(std::uint64_t u) {
        if (u >= unique.size()) return;
        firsts[u] = csr_indices[csr_offsets[u]];
        first_counts[u] = batch.count(last_holds ? csr_indices[csr_offsets[u + 1] - 1] : firsts[u]);
        crossings[u] = kNever;
        RowWord const word = words[u];
        if (is_row(word)) return;
        std::uint32_t count = is_pending(word) ? pending_count_of(word) : 0;
        // Walk over the occurrences in batch order, as the CPU table does, and stop at the one that reaches min_count.
        for (std::uint32_t m = csr_offsets[u]; m < csr_offsets[u + 1]; ++m) {
          count = saturating_sum(count, m == csr_offsets[u] ? first_counts[u] : batch.count(csr_indices[m]));
          if (count < min_count) continue;
          crossings[u] = csr_indices[m];
          crossing_counts[u] = count;
          return;
        }
      },
      stream, "plan insertions");
  refuse_what_has_no_room(plan, rules, stream);

  DeviceBuffer<RowId> rows(plan.num_keys, stream);
  DeviceBuffer<KeyStatus> statuses(plan.num_keys, stream);
  auto counted = view_of(plan.unique.keys());
  // insert_or_assign() without counts: an assignment is no lookup. The counts that deduplication made are ignored.
  if (keys.counts.empty() && rules.default_count == 0) {
    counted.counts = nullptr;
    counted.default_count = 0;
  }
  insert_unique(counted, rules, &plan, {.rows = rows.data(), .statuses = statuses.data()}, stream);
  for_each_async(
      plan.num_keys,
      [batch = view_of(keys), inverse_indices = plan.inverse_indices.data(), crossings = plan.crossings.data(),
       rows = rows.data(), statuses = statuses.data(), outcome, state = state_.data()] __device__(std::uint64_t i) {
        if (i >= batch.size()) {
          outcome.rows[i] = RowId::kNone;
          outcome.statuses[i] = KeyStatus::kAbsent;
          return;
        }
        // The kernels decided once per unique key. Per occurrence: before the crossing it is pending, at the crossing
        // it is inserted (or refused), behind it the row is already there (or is refused again).
        std::uint32_t const u = inverse_indices[i], crossing = crossings[u];
        auto status = statuses[u];
        if (status == KeyStatus::kInserted || status == KeyStatus::kNoRoom) {
          if (i < crossing) status = KeyStatus::kPending;
          if (i > crossing && status == KeyStatus::kInserted) status = KeyStatus::kFound;
        }
        if (status == KeyStatus::kNoRoom) count_one(&state->statistics.refused);
        outcome.rows[i] = status == KeyStatus::kPending ? RowId::kNone : rows[u];
        outcome.statuses[i] = status;
      },
      stream, "assign rows");
}

void CudaTable::refuse_what_has_no_room(Plan& plan, Rules const& rules, cudaStream_t stream) {
  if (num_rows_at_most() + plan.num_keys <= most_rows(rules)) return;
  auto const unique = view_of(plan.unique.keys());
  // asks[i] is 1 if position i is a crossing. Its prefix sum numbers the new rows in batch order, so that the keys
  // which come first get the last rows. The entry behind the batch is the number of rows wanted, in device memory.
  DeviceBuffer<std::uint32_t> asks(plan.num_keys + 1, stream), ranks(plan.num_keys + 1, stream);
  fill_with_zeros(asks, stream);
  for_each_async(
      plan.num_keys,
      [unique, crossings = plan.crossings.data(), asks = asks.data()] __device__(std::uint64_t u) {
        if (u < unique.size() && crossings[u] != kNever) asks[crossings[u]] = 1;
      },
      stream, "ask for rows");
  run_with_scratch("ExclusiveSum", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, num_bytes, asks.data(), ranks.data(), plan.num_keys + 1, stream);
  });
  if (options_.eviction != EvictionPolicy::kNone && rules.is_limited) {
    make_room(plan, ranks.data() + plan.num_keys, stream);
  }
  for_each_async(
      plan.num_keys,
      [unique, most_rows = static_cast<std::uint32_t>(most_rows(rules)), state = state_.data(),
       crossings = plan.crossings.data(), ranks = ranks.data(),
       are_refused = plan.are_refused.data()] __device__(std::uint64_t u) {
        if (u >= unique.size() || crossings[u] == kNever) return;
        are_refused[u] = ranks[crossings[u]] >= most_rows - min(most_rows, state->num_rows) ? 1 : 0;
      },
      stream, "refuse keys");
}

void CudaTable::make_room(Plan const& plan, std::uint32_t const* num_wanted, cudaStream_t stream) {
  DeviceBuffer<std::uint32_t> const num_too_many(1, stream);
  for_each_async(
      1,
      [num_wanted, most_rows = static_cast<std::uint32_t>(options_.max_rows),
       low_water = static_cast<std::uint32_t>(options_.low_water), batch = options_.eviction_batch,
       state = state_.data(), num_too_many = num_too_many.data()] __device__(std::uint64_t) {
        std::uint32_t const num_rows = state->num_rows, wanted = *num_wanted;
        // Rows that may stay for `wanted` more to fit. Both differences are written so that they cannot wrap below
        // zero.
        std::uint32_t const allowed = most_rows - min(most_rows, wanted);
        bool const has_room = wanted <= most_rows - min(most_rows, num_rows);
        *num_too_many =
            has_room
                ? 0
                : num_rows - static_cast<std::uint32_t>(rows_left(num_rows, allowed, min(low_water, allowed), batch));
      },
      stream, "count rows that are too many");
  for_each_async(
      plan.num_keys,
      [unique = view_of(plan.unique.keys()), rows = rows_.view(), words = plan.words.data(),
       num_too_many = num_too_many.data(), step = step_] __device__(std::uint64_t u) {
        if (*num_too_many == 0 || u >= unique.size() || !is_row(words[u])) return;
        // Several threads may write the same row's step; they all write the same value.
        rows.metadata(row_of(words[u])).step = step;  // In use: eviction must not take rows of this batch.
      },
      stream, "keep rows");
  evict_async(num_too_many.data(), stream);
}

void CudaTable::write_embeddings(Keys const& keys, std::span<RowId const> rows, std::span<float const> embeddings,
                                 LastOfEach const& is_written, cudaStream_t stream) {
  for_each_quad_async(
      keys.size(), rows_.view().num_quads(),
      [batch = view_of(keys), table_rows = rows_.view(), rows = rows.data(), embeddings = embeddings.data(),
       is_written = is_written.view()] __device__(std::uint32_t i, std::uint32_t quad) {
        if (i >= batch.size() || rows[i] == RowId::kNone || !is_written(i)) return;
        table_rows.write(rows[i], quad,
                         read_quad(embeddings + std::uint64_t{i} * table_rows.dim, quad, table_rows.dim));
      },
      stream, "write embeddings");
}

void CudaTable::import_records(Records const& records, std::span<KeyStatus> statuses) {
  auto const on_host = records.keys();
  expect_one_each(on_host, records.tables.size(), "tables");
  expect_one_each(on_host, records.counts.size(), "counts");
  expect_one_each(on_host, records.steps.size(), "steps");
  expect_one_each(on_host, statuses.empty() ? on_host.size() : statuses.size(), "statuses");
  expect_values(on_host, records.embeddings.size(), options_.dim, "embeddings");
  expect_values(on_host, records.states.size(), state_size(), "states");
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  auto const ids = copy_to_device(std::span(records.ids), stream);
  auto const tables = copy_to_device(std::span(records.tables), stream);
  auto const counts = copy_to_device(std::span(records.counts), stream);
  auto const steps = copy_to_device(std::span(records.steps), stream);
  auto const embeddings = copy_to_device(std::span(records.embeddings), stream);
  auto const states = copy_to_device(std::span(records.states), stream);
  DeviceBuffer<RowId> rows(on_host.size(), stream);
  DeviceBuffer<KeyStatus> device_statuses(on_host.size(), stream);
  Keys const keys{.ids = ids.span(), .tables = tables.span(), .counts = counts.span()};
  has_imported_ = true;
  // The record's count decides on the precision. If a key repeats, its counts do not add up: the last one holds.
  insert(keys, {.min_count = 0, .is_limited = false, .fills_embeddings = false, .last_holds = true},
         {.rows = rows.data(), .statuses = device_statuses.data()}, stream);
  auto const is_written = last_of_each(keys, stream);
  write_embeddings(keys, rows.span(), embeddings.span(), is_written, stream);
  for_each_async(
      keys.size(),
      [table_rows = rows_.view(), rows = rows.data(), counts = counts.data(), steps = steps.data(),
       states = states.data(), is_written = is_written.view()] __device__(std::uint64_t i) {
        if (rows[i] == RowId::kNone || !is_written(static_cast<std::uint32_t>(i))) return;
        table_rows.metadata(rows[i]) = {.count = counts[i], .step = steps[i]};
        std::uint32_t const width = table_rows.state_size;
        float const* const from = states + i * (width + (table_rows.is_row_wise ? 1 : 0));
        for (std::uint32_t j = 0; j < width; ++j) table_rows.state(rows[i])[j] = from[j];
        if (table_rows.is_row_wise) table_rows.row_state(rows[i]) = from[width];
      },
      stream, "write state");
  copy_to_host(device_statuses, statuses, stream);
}

void CudaTable::import_pending(Records const& records) {
  auto const all = records.keys();
  expect_one_each(all, records.tables.size(), "tables");
  expect_one_each(all, records.counts.size(), "counts");
  auto const last = last_records(records);
  std::size_t const num_keys = last.ids.size();
  if (num_keys == 0) return;
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  auto const ids = copy_to_device(std::span(last.ids), stream);
  auto const tables = copy_to_device(std::span(last.tables), stream);
  auto const counts = copy_to_device(std::span(last.counts), stream);
  DeviceBuffer<RowWord*> words(num_keys, stream);
  grow_stripes(num_keys, stream);
  auto const keys = view_of({.ids = ids.span(), .tables = tables.span(), .counts = counts.span()});
  // The first kernel claims slots, and the second one writes words. Probes skip kClaimed slots meanwhile.
  for_each_async(
      num_keys,
      [keys, index = index(), words = words.data(), state = state_.data()] __device__(std::uint64_t i) {
        words[i] = claim_or_find_pending(index, keys.key(static_cast<std::uint32_t>(i)), *state);
      },
      stream, "claim slots of pending keys");
  for_each_async(
      num_keys,
      [keys, words = words.data(), state = state_.data()] __device__(std::uint64_t i) {
        if (words[i] == nullptr) return;
        if (*words[i] == kClaimed) count_one(&state->num_pending);
        *words[i] = pending_word(keys.count(static_cast<std::uint32_t>(i)));
      },
      stream, "write counts of pending keys");
  mirror_.record(state_.data(), num_keys, stream);
}

}  // namespace headway::embedding
