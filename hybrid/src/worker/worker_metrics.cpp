// SPDX-License-Identifier: Apache-2.0

#include "headway/hybrid/embedding_worker.hpp"
#include "messages/metric_page.hpp"

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace headway::hybrid {

namespace {

constexpr auto kKinds = std::to_array<std::pair<std::uint32_t, std::string_view>>({
    {static_cast<std::uint32_t>(WorkerRequest::kSubmit), "submit"},
    {static_cast<std::uint32_t>(WorkerRequest::kFetch), "fetch"},
    {static_cast<std::uint32_t>(WorkerRequest::kGradients), "gradients"},
    {static_cast<std::uint32_t>(WorkerRequest::kDrop), "drop"},
    {static_cast<std::uint32_t>(WorkerRequest::kRead), "read"},
    {static_cast<std::uint32_t>(WorkerRequest::kStatus), "status"},
});

void add_batches(MetricPage& page, WorkerStatus const& status) {
  page.add_gauge("generation", "Formation of the dense workers; 0: none has begun.", status.generation);
  page.add_counter("submitted_batches_total", "Batches of loaders.", status.submitted);
  page.add_counter("trained_batches_total", "Batches whose gradients all servers have taken.", status.trained);
  page.add_counter("read_batches_total", "Batches that were looked up without training.", status.read);
  page.add_losses("lost_batches_total", "Batches that were not trained, by cause.", status.lost);
  auto& now = page.gauge("batches", "Batches that are here now, by state.");
  now.add("state", "waiting", static_cast<double>(status.waiting_loaders));
  now.add("state", "buffered", static_cast<double>(status.buffered));
  now.add("state", "in_flight", static_cast<double>(status.in_flight));
  page.add_gauge("buffered_bytes", "Ids of batches that nobody has fetched.", status.buffered_bytes);
  page.add_counter("drops_total", "Void notices of dense workers, also for steps without a batch.", status.dropped);
}

void add_waits(MetricPage& page, WorkerStatus const& status) {
  page.add_counter("loader_waits_total", "Batches that had to wait for room.", status.loader_waits);
  page.counter("loader_wait_seconds_total", "Time that loaders waited for room.")
      .add(seconds_of(status.loader_wait_ns));
  page.add_counter("answered_fetches_total", "Fetches that got their embeddings.", status.answered);
  auto& last = page.counter("last_server_total", "Fetches for which a server's rows were the last ones missing.");
  for (std::size_t server = 0; server < status.servers.size(); ++server) {
    last.add("server", std::to_string(server), static_cast<double>(status.servers[server].num_last));
  }
  auto& seconds = page.counter("last_server_seconds_total", "Time of those fetches, from request to embeddings.");
  for (std::size_t server = 0; server < status.servers.size(); ++server) {
    seconds.add("server", std::to_string(server), seconds_of(status.servers[server].last_ns));
  }
}

void add_server_bytes(MetricPage& page, WorkerStatus const& status) {
  auto& bytes = page.counter("server_bytes_total", "Bytes exchanged with parameter servers, as they travel.");
  for (std::size_t server = 0; server < status.servers.size(); ++server) {
    auto const& of_server = status.servers[server];
    for (auto const& [direction, value] :
         {std::pair("received", of_server.bytes_received), std::pair("sent", of_server.bytes_sent)}) {
      bytes.add("server", std::to_string(server), static_cast<double>(value))
          .labels.emplace_back("direction", direction);
    }
  }
}

}  // namespace

std::vector<base::MetricFamily> metrics_of(WorkerStatus const& status, RequestTraffic const& traffic,
                                           std::size_t num_links) {
  MetricPage page;
  add_batches(page, status);
  add_waits(page, status);
  add_server_bytes(page, status);
  page.add_traffic(traffic, kKinds);
  page.add_messages(status.messages);
  page.add_gauge("links", "Links to loaders and dense workers.", num_links);
  return page.take();
}

}  // namespace headway::hybrid
