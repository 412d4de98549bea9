// SPDX-License-Identifier: Apache-2.0

// bench_embedding_table: times insertion and lookups of Headway's CPU table, of a flat table that is the lower bound,
// and of hash maps. Each system inserts the same random ids in steps, then finds rows and embeddings of random batches.
// The first column of an embedding encodes its id, so results are checked.

#include "json_object.hpp"
#include "rank_program.hpp"
#include "sample_summary.hpp"
#include "systems.hpp"
#include "table_settings.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

using Clock = std::chrono::steady_clock;
using Durations = std::vector<std::vector<double>>;  ///< (systems, calls), seconds.

/// Estimate of the bytes per row beside the embedding, in any system: key index, and spare space of growing vectors.
constexpr std::size_t kBytesBesideEmbedding = 64;

/// First column of the embedding of an id.
float first_value(std::uint64_t id) { return static_cast<float>(id & 0xfffff); }

template <class Call>
double seconds_of(Call call) {
  auto const begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Indices of the systems, in an order that alternates between rounds.
std::vector<std::size_t> turns(std::size_t count, int round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (round % 2 != 0) std::ranges::reverse(order);
  return order;
}

/// Touches memory before the measurement. In a virtual machine, the first system would else pay for pages that the
/// guest has to get from its host.
void warm_memory(std::size_t num_bytes) { std::vector<char> const touched(num_bytes, 1); }

/// Prints one JSON point per system. @param keys ids per call
void print(TableSettings const& settings, std::string const& operation, std::span<NamedTableSystem const> systems,
           Durations const& durations_s, std::size_t keys) {
  for (std::size_t i = 0; i < systems.size(); ++i) {
    auto const summary = summarize(durations_s[i]);
    print_point(JsonObject()
                    .add("name", "embedding_table")
                    .add("params", JsonObject()
                                       .add("operation", operation)
                                       .add("rows", settings.rows)
                                       .add("keys", keys)
                                       .add("dim", settings.dim)
                                       .add("threads", settings.threads))
                    .add("system", systems[i].name)
                    .add("median_s", summary.median_s)
                    .add("p5_s", summary.p5_s)
                    .add("p95_s", summary.p95_s)
                    .add("longest_s", *std::ranges::max_element(durations_s[i]))
                    .add("samples", summary.samples)
                    .add("rate", static_cast<double>(keys) / summary.median_s / 1e6)
                    .add("unit", "million keys/s"));
  }
}

/// For each round and system, in turns: calls `prepare()`, times `find(system)`, calls `check(system)`.
/// @returns (systems, rounds), seconds
template <class Prepare, class Find, class Check>
Durations time_finds(int rounds, std::span<NamedTableSystem> systems, Prepare prepare, Find find, Check check) {
  Durations durations_s(systems.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t const at : turns(systems.size(), round)) {
      prepare();
      durations_s[at].push_back(seconds_of([&] { find(*systems[at].system); }));
      check(systems[at]);
    }
  }
  return durations_s;
}

Durations time_find_rows(TableSettings const& settings, std::span<NamedTableSystem> systems,
                         std::span<std::uint64_t const> ids) {
  constexpr std::uint32_t kNotFound = 0xffffffff;
  std::mt19937_64 random(settings.seed + 1);
  std::vector<std::uint64_t> batch(settings.batch);
  std::vector<std::uint32_t> rows(settings.batch);
  return time_finds(
      settings.rounds, systems,
      [&] {
        for (auto& id : batch) id = ids[random() % ids.size()];
        std::ranges::fill(rows, kNotFound);
      },
      [&](TableSystem& system) { system.find_rows(batch, rows); },
      [&](NamedTableSystem const& each) {
        if (std::ranges::count(rows, kNotFound) > 0) throw std::runtime_error(each.name + " did not find an id");
      });
}

Durations time_find_embeddings(TableSettings const& settings, std::span<NamedTableSystem> systems,
                               std::span<std::uint64_t const> ids) {
  std::mt19937_64 random(settings.seed + 2);
  std::vector<std::uint64_t> batch(settings.batch);
  std::vector<float> found(settings.batch * settings.dim);
  return time_finds(
      settings.rounds, systems,
      [&] {
        for (auto& id : batch) id = ids[random() % ids.size()];
        std::ranges::fill(found, -1.0F);
      },
      [&](TableSystem& system) { system.find_embeddings(batch, found); },
      [&](NamedTableSystem const& each) {
        for (std::size_t i = 0; i < batch.size(); ++i) {
          if (found[i * settings.dim] == first_value(batch[i])) continue;
          throw std::runtime_error(each.name + " found a wrong vector");
        }
      });
}

/// Prints three JSON points per system: insert, find_rows and find_vectors. @returns the exit status
int measure_table(TableSettings const& settings) {
  auto systems = make_table_systems(settings.dim, settings.threads);
  warm_memory(settings.rows * (settings.dim * sizeof(float) + kBytesBesideEmbedding) * systems.size());
  std::mt19937_64 random(settings.seed);
  std::vector<std::uint64_t> ids(settings.rows);
  for (auto& id : ids) id = random();
  std::vector<float> embeddings(settings.step * settings.dim);
  Durations durations_s(systems.size());
  int round = 0;
  for (std::size_t first = 0; first < ids.size(); first += settings.step, ++round) {
    auto const step = std::span(ids).subspan(first, std::min(settings.step, ids.size() - first));
    auto const of_step = std::span(embeddings).first(step.size() * settings.dim);
    for (std::size_t i = 0; i < step.size(); ++i) of_step[i * settings.dim] = first_value(step[i]);
    for (std::size_t const at : turns(systems.size(), round)) {
      durations_s[at].push_back(seconds_of([&] { systems[at].system->insert(step, of_step); }));
    }
  }
  print(settings, "insert", systems, durations_s, std::min(settings.step, ids.size()));

  print(settings, "find_rows", systems, time_find_rows(settings, systems, ids), settings.batch);
  print(settings, "find_vectors", systems, time_find_embeddings(settings, systems, ids), settings.batch);
  return 0;
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_main(argc, argv, table_usage,
                  [](Arguments arguments) { return measure_table(parse_table_settings(arguments)); });
}
