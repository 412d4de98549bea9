// SPDX-License-Identifier: Apache-2.0

// Measures the compression of hybrid training: how much smaller ids and values get, and how fast both ways are.
//
//   ids          lists of ids, drawn by Zipf's law over a space of ids
//   hashed_ids   the same, with ids that a hash has spread over 64 bits
//   values       rows of floats from a normal distribution
//
// A rate counts plain bytes: 8 for an id, without those of lengths, and 4 for a value. One thread.

#include "json_object.hpp"
#include "options.hpp"
#include "rank_program.hpp"
#include "sample_summary.hpp"

#include <headway/kernels/half_blocks.hpp>
#include <headway/kernels/id_lists.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headway::benchmarks {

namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

struct Settings {
  std::size_t samples = 4096, ids = 20;
  std::uint64_t space = 50'000'000;
  int zipf = 120;
  std::size_t rows = 16'384, dim = 64;
  int rounds = 101;
};

std::string usage(std::string const& program) {
  return "Measures the compression of hybrid training, and prints a JSON line for each kind and direction.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --samples N   lists of ids (4096)\n"
         "  --ids N       of each list (20)\n"
         "  --space N     ids to draw from (50000000)\n"
         "  --zipf E      exponent of Zipf's law, in hundredths; not 100 (120)\n"
         "  --rows N      of values (16384)\n"
         "  --dim D       values of a row (64)\n"
         "  --rounds N    of each kind (101)\n";
}

kernels::IdLists draw_ids(Settings const& settings) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform;
  // Inversion of the integral of x^-E from 0.5 on, which is close to the sum.
  double const power = 1 - settings.zipf / 100.0;
  double const first = std::pow(0.5, power), last = std::pow(static_cast<double>(settings.space) + 0.5, power);
  kernels::IdLists lists;
  lists.lengths.assign(settings.samples, static_cast<std::int64_t>(settings.ids));
  for (std::size_t i = 0; i < settings.samples * settings.ids; ++i) {
    lists.ids.push_back(std::llround(std::pow(first + uniform(random) * (last - first), 1 / power)));
  }
  return lists;
}

/// Sizes and work of one kind.
struct Kind {
  std::string name;
  std::size_t plain_bytes = 0;
  std::function<std::size_t()> encode;  ///< Returns the compressed bytes.
  std::function<void()> decode;
};

Kind kind_of_ids(std::string name, kernels::IdLists lists) {
  struct State {
    kernels::IdLists lists, decoded;
    std::vector<std::byte> bytes;
  };
  auto const state = std::make_shared<State>();
  state->lists = std::move(lists);
  return {.name = std::move(name),
          .plain_bytes = state->lists.ids.size() * sizeof(std::int64_t),
          .encode =
              [state] {
                state->bytes.clear();
                kernels::append_id_lists(state->lists.lengths, state->lists.ids, state->bytes);
                return state->bytes.size();
              },
          .decode =
              [state] {
                auto const& from = state->lists;
                static_cast<void>(
                    kernels::decode_id_lists(state->bytes, from.lengths.size(), from.ids.size(), state->decoded));
                if (state->decoded.ids != from.ids) throw std::runtime_error("other ids were decoded");
              }};
}

Kind kind_of_values(Settings const& settings) {
  struct State {
    std::vector<float> rows, decoded;
    std::vector<std::uint16_t> halves;
    std::vector<std::uint8_t> exponents;
  };
  auto const state = std::make_shared<State>();
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  auto const size = settings.rows * settings.dim, dim = settings.dim;
  for (std::size_t i = 0; i < size; ++i) state->rows.push_back(normal(random));
  state->decoded.resize(size);
  state->halves.resize(size);
  state->exponents.resize(settings.rows * kernels::half_blocks(dim));
  return {
      .name = "values",
      .plain_bytes = size * sizeof(float),
      .encode =
          [state, dim] {
            kernels::encode_half_blocks(state->rows, dim, state->halves, state->exponents);
            return state->halves.size() * sizeof(std::uint16_t) + state->exponents.size();
          },
      .decode = [state, dim] { kernels::decode_half_blocks(state->halves, state->exponents, dim, state->decoded); }};
}

void measure(Kind const& kind, Settings const& settings) {
  std::vector<double> encode_s, decode_s;
  std::size_t num_bytes = 0;
  for (int round = -1; round < settings.rounds; ++round) {
    auto const begin = steady_clock::now();
    num_bytes = kind.encode();
    auto const between = steady_clock::now();
    kind.decode();
    auto const end = steady_clock::now();
    if (round < 0) continue;
    encode_s.push_back(duration<double>(between - begin).count());
    decode_s.push_back(duration<double>(end - between).count());
  }
  for (auto const& [system, times] : {std::pair("encode", encode_s), std::pair("decode", decode_s)}) {
    auto const summary = summarize(times);
    JsonObject point, params;
    params.add("kind", kind.name).add("samples", settings.samples).add("ids", settings.ids);
    params.add("space", settings.space).add("zipf", settings.zipf / 100.0);
    params.add("rows", settings.rows).add("dim", settings.dim);
    point.add("name", "compression").add("params", params).add("system", system);
    point.add("median_s", summary.median_s).add("p5_s", summary.p5_s).add("p95_s", summary.p95_s);
    point.add("samples", summary.samples);
    point.add("rate", static_cast<double>(kind.plain_bytes) / summary.median_s / 1e9).add("unit", "GB/s");
    point.add("compressed", static_cast<double>(kind.plain_bytes) / static_cast<double>(num_bytes));
    print_point(point);
  }
}

int run(Arguments arguments) {
  Settings settings;
  parse_options(arguments, {{"--samples", number(settings.samples, std::size_t{1}, std::size_t{1} << 24)},
                            {"--ids", number(settings.ids, std::size_t{1}, std::size_t{1000})},
                            {"--space", number(settings.space, std::uint64_t{1}, std::uint64_t{1} << 62)},
                            {"--zipf", number(settings.zipf, 1, 1000)},
                            {"--rows", number(settings.rows, std::size_t{1}, std::size_t{1} << 24)},
                            {"--dim", number(settings.dim, std::size_t{1}, std::size_t{4096})},
                            {"--rounds", number(settings.rounds, 1, 100'000)}});
  if (settings.zipf == 100) throw SettingsError("--zipf: not 100");
  auto const lists = draw_ids(settings);
  auto hashed = lists;
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // A product with it is another id for each id.
  for (auto& id : hashed.ids) id = static_cast<std::int64_t>(static_cast<std::uint64_t>(id) * kOdd);
  measure(kind_of_ids("ids", lists), settings);
  measure(kind_of_ids("hashed_ids", std::move(hashed)), settings);
  measure(kind_of_values(settings), settings);
  return 0;
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  return headway::benchmarks::run_main(argc, argv, headway::benchmarks::usage, headway::benchmarks::run);
}
