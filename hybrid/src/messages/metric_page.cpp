// SPDX-License-Identifier: Apache-2.0

#include "messages/metric_page.hpp"

#include "headway/hybrid/server_messages.hpp"

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

namespace headway::hybrid {

void MetricPage::add_traffic(RequestTraffic const& traffic,
                             std::span<std::pair<std::uint32_t, std::string_view> const> kinds) {
  auto requests = base::MetricFamily{.name = "headway_hybrid_requests_total",
                                     .help = "Requests that came, by kind.",
                                     .kind = base::MetricKind::kCounter};
  auto& bytes = counter("bytes_total", "Bytes of requests (received) and their answers (sent), as they travel.");
  for (auto const& [kind, name] : kinds) {
    auto const counts = traffic.of(kind);
    requests.add("request", std::string(name), static_cast<double>(counts.num_requests));
    for (auto const& [direction, value] :
         {std::pair("received", counts.bytes_received), std::pair("sent", counts.bytes_sent)}) {
      bytes.add("request", std::string(name), static_cast<double>(value)).labels.emplace_back("direction", direction);
    }
  }
  families_.push_back(std::move(requests));
}

void MetricPage::add_messages(MessageBytes const& messages) {
  auto& bytes =
      counter("message_bytes_total", "Bytes of messages with ids and values, as sent and without compression.");
  for (auto const& [content, plain, sent] : {std::tuple("ids", messages.plain_ids, messages.sent_ids),
                                             std::tuple("values", messages.plain_values, messages.sent_values)}) {
    bytes.add("content", content, static_cast<double>(plain)).labels.emplace_back("form", "plain");
    bytes.add("content", content, static_cast<double>(sent)).labels.emplace_back("form", "sent");
  }
}

void MetricPage::add_losses(std::string_view name, char const* help, std::span<std::uint64_t const> counts) {
  auto& family = counter(name, help);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    family.add("cause", std::string(to_string(static_cast<LossCause>(i))), static_cast<double>(counts[i]));
  }
}

std::vector<base::MetricFamily> MetricPage::take() {
  families_.push_back(base::resident_memory());
  return std::move(families_);
}

base::MetricFamily& MetricPage::add(std::string_view name, char const* help, base::MetricKind kind) {
  return families_.emplace_back(
      base::MetricFamily{.name = "headway_hybrid_" + std::string(name), .help = help, .kind = kind});
}

}  // namespace headway::hybrid
