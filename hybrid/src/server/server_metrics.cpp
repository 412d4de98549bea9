// SPDX-License-Identifier: Apache-2.0

#include "server/server_metrics.hpp"

#include "messages/metric_page.hpp"

#include <array>
#include <string>

namespace headway::hybrid {

namespace {

constexpr auto kKinds = std::to_array<std::pair<std::uint32_t, std::string_view>>({
    {static_cast<std::uint32_t>(ServerRequest::kLookup), "lookup"},
    {static_cast<std::uint32_t>(ServerRequest::kPart), "part"},
    {static_cast<std::uint32_t>(ServerRequest::kVoid), "void"},
    {static_cast<std::uint32_t>(ServerRequest::kRead), "read"},
    {static_cast<std::uint32_t>(ServerRequest::kStatus), "status"},
    {static_cast<std::uint32_t>(ServerRequest::kRows), "rows"},
});

/// Names of the tables that a merged table has, joined by "+".
std::string name_of(TableStatus const& table) {
  std::string name;
  for (auto const& each : table.shares) name += (name.empty() ? "" : "+") + each.table;
  return name;
}

void add_steps(MetricPage& page, ServerStatus const& status) {
  page.add_gauge("generation", "Formation of the dense workers; 0: none has begun.", status.generation);
  page.add_gauge("step", "Steps that are applied: all below this one.", status.num_applied);
  page.add_counter("lookups_total", "Lookups of batches.", status.lookups);
  page.add_counter("reads_total", "Lookups that insert nothing.", status.reads);
  page.add_counter("samples_total", "Samples of the batches that were looked up.", status.samples);
  page.add_counter("parts_total", "Gradients of batches that were taken.", status.parts);
  page.add_losses("lost_parts_total", "Gradients of batches that did not come or were dropped, by cause.", status.lost);
  auto& staleness = page.histogram("staleness_steps", "Steps whose updates an answer to a lookup lacked.");
  base::add_histogram(staleness, status.staleness, 0, false);
}

void add_waits(MetricPage& page, ServerStatus const& status) {
  page.add_gauge("held_lookups", "Lookups that are held back now.", status.held);
  auto& seconds = page.counter("held_seconds_total", "Time of held lookups, by the dense worker they waited for.");
  for (std::size_t worker = 0; worker < status.waits.size(); ++worker) {
    seconds.add("worker", std::to_string(worker), seconds_of(status.waits[worker].nanoseconds));
  }
  auto& lookups =
      page.counter("held_lookups_total", "Lookups that were held back, by the dense worker they waited for.");
  for (std::size_t worker = 0; worker < status.waits.size(); ++worker) {
    lookups.add("worker", std::to_string(worker), static_cast<double>(status.waits[worker].num_lookups));
  }
}

void add_tables(MetricPage& page, ServerStatus const& status) {
  auto const add = [&](base::MetricFamily& family, std::uint64_t TableStatus::*number) {
    for (auto const& table : status.tables) family.add("table", name_of(table), static_cast<double>(table.*number));
  };
  add(page.gauge("rows", "Rows of a table."), &TableStatus::rows);
  add(page.gauge("cold_rows", "Rows in bfloat16; part of the rows."), &TableStatus::cold_rows);
  add(page.gauge("pending_ids", "Ids that were looked up too rarely to have a row."), &TableStatus::pending);
  add(page.gauge("key_bytes", "Memory of the key index."), &TableStatus::key_bytes);
  add(page.gauge("row_bytes", "Memory of rows."), &TableStatus::row_bytes);
  add(page.counter("inserted_rows_total", "Rows that were inserted."), &TableStatus::inserted);
  add(page.counter("evicted_rows_total", "Rows that were evicted."), &TableStatus::evicted);
  add(page.counter("expired_rows_total", "Rows that were removed after their time to live."), &TableStatus::expired);
  add(page.counter("refused_insertions_total", "Lookups of new ids for which there was no room."),
      &TableStatus::refused);
  add(page.counter("dropped_gradients_total", "Gradients of ids whose row was gone."), &TableStatus::dropped_gradients);
}

void add_shares(MetricPage& page, ServerStatus const& status) {
  auto& top = page.counter("top_id_lookups_total",
                           "Lookups of the commonest id of each batch, by table; divide by samples for alpha.");
  for (auto const& merged : status.tables) {
    for (auto const& each : merged.shares) top.add("table", each.table, static_cast<double>(each.top_lookups));
  }
  auto& alpha = page.gauge("alpha", "Share of samples that hold the commonest id of a table, an estimate from above.");
  for (auto const& merged : status.tables) {
    for (auto const& each : merged.shares) {
      if (each.num_samples == 0) continue;
      alpha.add("table", each.table, static_cast<double>(each.top_lookups) / static_cast<double>(each.num_samples));
    }
  }
}

}  // namespace

std::vector<base::MetricFamily> metrics_of(ServerStatus const& status, RequestTraffic const& traffic,
                                           std::size_t num_links) {
  MetricPage page;
  add_steps(page, status);
  add_waits(page, status);
  add_tables(page, status);
  add_shares(page, status);
  page.add_traffic(traffic, kKinds);
  page.add_messages(status.messages);
  page.add_gauge("links", "Links to other roles.", num_links);
  return page.take();
}

}  // namespace headway::hybrid
