// SPDX-License-Identifier: Apache-2.0

#include "worker/row_directory.hpp"

#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

namespace headway::hybrid {

RowDirectory::RowDirectory(EmbeddingClient& client, std::span<embedding::MergedTable const> tables,
                           std::span<std::size_t const> small)
    : client_(client) {
  for (auto const merged : small) {
    base::expects(merged < tables.size() && tables[merged].tables.size() == 1,
                  "merged table " + std::to_string(merged) + " is not one small table");
    auto const id = tables[merged].tables.front();
    base::expects(index_of_.emplace(id, tables_.size()).second, "a small table is there twice");
    tables_.push_back({.merged = merged, .id = id, .dim = tables[merged].options.dim});
  }
}

RowDirectory::Lookup RowDirectory::start(std::span<embedding::Feature const> features) {
  std::vector<std::vector<std::uint64_t>> missing(tables_.size());
  std::vector<std::unordered_set<std::uint64_t>> seen(tables_.size());
  for (auto const& feature : features) {
    auto const found = index_of_.find(feature.table);
    if (found == index_of_.end()) continue;
    auto const& known = tables_[found->second].position_of;
    for (std::size_t i = 0; i < feature.ids.size; ++i) {
      auto const id = static_cast<std::uint64_t>(feature.ids[i]);
      if (!known.contains(id) && seen[found->second].insert(id).second) missing[found->second].push_back(id);
    }
  }
  auto const num_servers = client_.num_servers();
  Lookup lookup{.servers = std::vector<Lookup::AtServer>(num_servers)};
  for (auto& each : lookup.servers) each.ids.resize(tables_.size());
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    auto const& ids = missing[table];
    auto const [order, counts] =
        embedding::route({.ids = ids, .table = tables_[table].id}, static_cast<std::uint32_t>(num_servers));
    std::size_t next = 0;
    for (std::size_t server = 0; server < num_servers; ++server) {
      for (std::int64_t i = 0; i < counts[server]; ++i) lookup.servers[server].ids[table].push_back(ids[order[next++]]);
    }
  }
  for (std::size_t server = 0; server < num_servers; ++server) {
    std::vector<RowQuery> queries;
    for (std::size_t table = 0; table < tables_.size(); ++table) {
      auto const& ids = lookup.servers[server].ids[table];
      if (!ids.empty()) queries.push_back({.merged = tables_[table].merged, .ids = ids});
    }
    if (!queries.empty()) lookup.servers[server].call = client_.start_rows(server, queries);
  }
  return lookup;
}

bool RowDirectory::is_ready(Lookup& lookup) {
  bool are_all_there = true;
  for (std::size_t server = 0; server < lookup.servers.size(); ++server) {
    auto& of_server = lookup.servers[server];
    if (of_server.call == nullptr) continue;
    if (client_.has_answered(server, *of_server.call)) {
      take(server, of_server, client_.wait_rows(server, *of_server.call));
    } else {
      are_all_there = false;
    }
  }
  return are_all_there;
}

void RowDirectory::wait(Lookup& lookup) {
  for (std::size_t server = 0; server < lookup.servers.size(); ++server) {
    auto& of_server = lookup.servers[server];
    if (of_server.call != nullptr) take(server, of_server, client_.wait_rows(server, *of_server.call));
  }
}

void RowDirectory::take(std::size_t server, Lookup::AtServer& of_server, Body const& body) {
  auto const answers = decode_indexed_rows(body);
  std::size_t next = 0;
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    auto const& ids = of_server.ids[table];
    if (ids.empty()) continue;
    auto& [merged, id, dim, position_of, rows] = tables_[table];
    base::expects(next < answers.size(), "a server has answered other questions about rows");
    auto const& answer = answers[next++];
    base::expects(answer.indices.size() == ids.size() && answer.embeddings.size() == ids.size() * dim,
                  "a server has answered other questions about rows");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto const position = static_cast<std::uint32_t>(rows.indices.size());
      if (!position_of.try_emplace(ids[i], position).second) continue;
      append(rows, answer, i, dim);
      rows.indices.back() = static_cast<std::uint32_t>(rows.indices.back() * client_.num_servers() + server);
    }
  }
  base::expects(next == answers.size(), "a server has answered other questions about rows");
  of_server.call = nullptr;
}

void RowDirectory::append(IndexedRows& to, IndexedRows const& from, std::size_t row, std::size_t dim) {
  auto const num_states = from.states.size() / from.indices.size();
  to.indices.push_back(from.indices[row]);
  to.are_stored.push_back(from.are_stored[row]);
  to.counts.push_back(from.counts[row]);
  to.steps.push_back(from.steps[row]);
  auto const* const embedding = from.embeddings.data() + row * dim;
  to.embeddings.insert(to.embeddings.end(), embedding, embedding + dim);
  auto const* const state = from.states.data() + row * num_states;
  to.states.insert(to.states.end(), state, state + num_states);
}

RowDirectory::Positions RowDirectory::write(std::span<embedding::Feature const> features, Known const& known,
                                            Embeddings& embeddings) const {
  Positions positions(tables_.size());
  embeddings.small_rows.resize(tables_.size());
  std::vector<std::unordered_set<std::uint32_t>> seen(tables_.size());
  for (auto const& feature : features) {
    auto const found = index_of_.find(feature.table);
    if (found == index_of_.end()) continue;
    auto const index = found->second;
    auto const& table = tables_[index];
    auto& small = embeddings.small_features.emplace_back();
    for (std::size_t i = 0; i < feature.lengths.size; ++i) small.lengths.push_back(feature.lengths[i]);
    small.weights.assign(feature.weights.begin(), feature.weights.end());
    for (std::size_t i = 0; i < feature.ids.size; ++i) {
      auto const position = table.position_of.at(static_cast<std::uint64_t>(feature.ids[i]));
      small.indices.push_back(table.rows.indices[position]);
      bool const is_known = index < known.size() && position < known[index].size() && known[index][position];
      if (is_known || !seen[index].insert(position).second) continue;
      positions[index].push_back(position);
      append(embeddings.small_rows[index], table.rows, position, table.dim);
    }
  }
  return positions;
}

void RowDirectory::mark(Known& known, Positions const& rows) {
  known.resize(std::max(known.size(), rows.size()));
  for (std::size_t table = 0; table < rows.size(); ++table) {
    for (auto const position : rows[table]) {
      auto& marks = known[table];
      if (marks.size() <= position) marks.resize(position + std::size_t{1});
      marks[position] = true;
    }
  }
}

void RowDirectory::clear() {
  for (auto& table : tables_) {
    table.position_of.clear();
    table.rows = {};
  }
}

}  // namespace headway::hybrid
