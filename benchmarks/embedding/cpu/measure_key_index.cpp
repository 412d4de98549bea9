// SPDX-License-Identifier: Apache-2.0

// bench_key_index: measures the CPU key index alone, on one thread. It maps the keys of one stripe, a part of a table,
// to their rows. Buckets hold keys of any table (wide) or of one table (packed), each with odd-step and linear probing.
// Prints one JSON line per kind and operation.

#include "cpu/index/key_index.hpp"
#include "json_object.hpp"
#include "options.hpp"
#include "rank_program.hpp"
#include "sample_summary.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headway::benchmarks {

namespace {

using embedding::hash_of;
using embedding::Key;
using embedding::RowWord;  // Value of a key in the index: the number of its row from 1, or kEmpty if there is no key.
using Clock = std::chrono::steady_clock;

/// Settings of bench_key_index.
struct KeyIndexSettings {
  std::size_t rows = 4'000'000;
  std::size_t batch = 1'000'000;
  int rounds = 7;
};

/// Nanoseconds per key of each operation, in one round.
struct Round {
  double insert_ns, hit_ns, miss_ns, erase_ns;
};

template <class Call>
double ns_per_key(std::size_t count, Call call) {
  auto const begin = Clock::now();
  for (std::size_t i = 0; i < count; ++i) call(i);
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / static_cast<double>(count);
}

/// Times the insertion of `ids` into an empty index, then hits, misses and erasures of `batch` random keys.
template <class Index>
Round measure(std::vector<std::uint64_t> const& ids, std::size_t batch, std::uint64_t seed) {
  embedding::SegmentPool pool;
  Index index(pool);
  Round round{};
  round.insert_ns = ns_per_key(ids.size(), [&](std::size_t i) {
    Key const key{.id = ids[i]};
    static_cast<void>(
        index.find_or_insert(key, hash_of(key), [&] { return RowWord{1 + static_cast<std::uint32_t>(i)}; }));
  });
  std::mt19937_64 random(seed);
  std::vector<std::size_t> chosen(batch);
  for (auto& each : chosen) each = random() % ids.size();
  std::uint64_t num_wrong = 0;
  auto const find = [&](Key key) { return index.find(key, hash_of(key)); };
  round.hit_ns = ns_per_key(batch, [&](std::size_t i) {
    num_wrong += find({.id = ids[chosen[i]]}) == RowWord{1 + static_cast<std::uint32_t>(chosen[i])} ? 0 : 1;
  });
  round.miss_ns =
      ns_per_key(batch, [&](std::size_t i) { num_wrong += find({.id = ~ids[chosen[i]]}) == RowWord::kEmpty ? 0 : 1; });
  round.erase_ns = ns_per_key(batch, [&](std::size_t i) {
    Key const key{.id = ids[chosen[i]]};
    static_cast<void>(index.erase(key, hash_of(key)));
  });
  if (num_wrong != 0) throw std::runtime_error("an index found wrong words");
  return round;
}

/// An index type with its name.
struct NamedIndex {
  std::string name;
  std::function<Round(std::vector<std::uint64_t> const&, std::size_t, std::uint64_t)> measure;
};

void print(KeyIndexSettings const& settings, std::string const& system, std::string const& operation,
           std::vector<double> const& ns) {
  auto const summary = summarize(ns);
  constexpr double kSecondsPerNs = 1e-9;
  print_point(JsonObject()
                  .add("name", "key_index")
                  .add("params", JsonObject().add("operation", operation).add("rows", settings.rows))
                  .add("system", system)
                  .add("median_s", summary.median_s * kSecondsPerNs)
                  .add("p5_s", summary.p5_s * kSecondsPerNs)
                  .add("p95_s", summary.p95_s * kSecondsPerNs)
                  .add("samples", summary.samples)
                  .add("rate", 1e3 / summary.median_s)
                  .add("unit", "million keys/s"));
}

/// Measures all kinds of index, in an order that alternates between rounds. @returns the exit status
int measure_all(KeyIndexSettings const& settings) {
  using embedding::KeyIndex, embedding::LinearProbe, embedding::OddStepProbe, embedding::PackedBucket,
      embedding::WideBucket;
  std::vector<NamedIndex> const kinds{{"wide", measure<KeyIndex<WideBucket, OddStepProbe>>},
                                      {"packed", measure<KeyIndex<PackedBucket, OddStepProbe>>},
                                      {"wide, linear probe", measure<KeyIndex<WideBucket, LinearProbe>>},
                                      {"packed, linear probe", measure<KeyIndex<PackedBucket, LinearProbe>>}};
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> ids(settings.rows);
  for (auto& id : ids) id = random() >> 1;  // Top bit 0, so the complement of an id is always a miss.
  std::vector<std::vector<Round>> rounds(kinds.size());
  for (int round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      std::size_t const at = round % 2 == 0 ? i : kinds.size() - 1 - i;
      rounds[at].push_back(kinds[at].measure(ids, settings.batch, random()));
    }
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (auto const& [operation, member] : {std::pair{"insert", &Round::insert_ns}, std::pair{"hit", &Round::hit_ns},
                                            std::pair{"miss", &Round::miss_ns}, std::pair{"erase", &Round::erase_ns}}) {
      std::vector<double> ns;
      for (auto const& round : rounds[i]) ns.push_back(round.*member);
      print(settings, kinds[i].name, operation, ns);
    }
  }
  return 0;
}

KeyIndexSettings parse(Arguments arguments) {
  constexpr std::size_t kMost = 1'000'000'000;
  KeyIndexSettings settings;
  parse_options(arguments, {{"--rows", number(settings.rows, std::size_t{1}, kMost)},
                            {"--batch", number(settings.batch, std::size_t{1}, kMost)},
                            {"--rounds", number(settings.rounds, 1, 1'000'000)}});
  return settings;
}

std::string usage(std::string const& program) {
  return "Times the key structure of tables alone, with wide and with packed keys and either probe, in turns.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --rows N     keys that are inserted (4000000)\n"
         "  --batch N    of them that are found, looked for in vain, and erased (1000000)\n"
         "  --rounds N   of each kind (7)\n";
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_main(argc, argv, usage, [](Arguments arguments) { return measure_all(parse(arguments)); });
}
