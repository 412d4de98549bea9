#include "measure_table.hpp"

#include "json_object.hpp"
#include "sample_summary.hpp"
#include "systems.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headway::benchmarks {

namespace {

using Clock = std::chrono::steady_clock;

/// Of an id in any of the systems, and of the space that a vector leaves free when it grows.
constexpr std::size_t kBytesBesideVector = 64;

/// What the vector of an id begins with.
float first_value(std::uint64_t id) { return static_cast<float>(id & 0xfffff); }

template <class Call>
double seconds_of(Call call) {
  auto const begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Systems in an order that is turned round each time.
std::vector<std::size_t> turns(std::size_t count, int round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (round % 2 != 0) std::ranges::reverse(order);
  return order;
}

/// What a virtual machine first has to get from its host would else be paid by whoever comes first.
void warm_memory(std::size_t num_bytes) { std::vector<char> const touched(num_bytes, 1); }

void print(TableSettings const& settings, std::string const& operation, std::span<NamedTableSystem const> systems,
           std::vector<std::vector<double>> const& durations_s, std::size_t keys) {
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

}  // namespace

int measure_table(TableSettings const& settings) {
  auto systems = make_table_systems(settings.dim, settings.threads);
  warm_memory(settings.rows * (settings.dim * sizeof(float) + kBytesBesideVector) * systems.size());
  std::mt19937_64 random(settings.seed);
  std::vector<std::uint64_t> ids(settings.rows);
  for (auto& id : ids) id = random();
  std::vector<float> vectors(settings.step * settings.dim);
  std::vector<std::vector<double>> durations_s(systems.size());
  int round = 0;
  for (std::size_t first = 0; first < ids.size(); first += settings.step, ++round) {
    auto const step = std::span(ids).subspan(first, std::min(settings.step, ids.size() - first));
    auto const of_step = std::span(vectors).first(step.size() * settings.dim);
    for (std::size_t i = 0; i < step.size(); ++i) of_step[i * settings.dim] = first_value(step[i]);
    for (std::size_t const at : turns(systems.size(), round)) {
      durations_s[at].push_back(seconds_of([&] { systems[at].system->insert(step, of_step); }));
    }
  }
  print(settings, "insert", systems, std::exchange(durations_s, {}), std::min(settings.step, ids.size()));

  durations_s.resize(systems.size());
  std::vector<std::uint64_t> batch(settings.batch);
  std::vector<float> found(settings.batch * settings.dim);
  for (round = 0; round < settings.rounds; ++round) {
    for (std::size_t const at : turns(systems.size(), round)) {
      for (auto& id : batch) id = ids[random() % ids.size()];
      std::ranges::fill(found, -1.0F);
      durations_s[at].push_back(seconds_of([&] { systems[at].system->find(batch, found); }));
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (found[i * settings.dim] == first_value(batch[i])) continue;
        throw std::runtime_error(systems[at].name + " found a wrong vector");
      }
    }
  }
  print(settings, "find", systems, durations_s, settings.batch);
  return 0;
}

}  // namespace headway::benchmarks
