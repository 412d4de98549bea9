// SPDX-License-Identifier: Apache-2.0
#include "cuda_table_settings.hpp"

#include <algorithm>

namespace headway::benchmarks {

namespace {

/// Option that takes any text.
Setter text(std::string& field) {
  return [&field](std::string_view, std::string_view value) { field = value; };
}

/// @throws SettingsError if settings contradict each other
void check(CudaTableSettings const& settings) {
  double const lowest_load = *std::ranges::min_element(settings.loads);
  if (static_cast<double>(settings.batch) > lowest_load * static_cast<double>(settings.capacity)) {
    throw SettingsError("--batch needs that many ids in the table at each of --loads");
  }
  if (settings.growth && (settings.first_rows < settings.step || settings.last_rows < settings.first_rows)) {
    throw SettingsError("--first-rows must lie between --step and --last-rows");
  }
}

}  // namespace

CudaTableSettings parse_cuda_table_settings(Arguments arguments) {
  constexpr std::size_t kMostRows = 1'000'000'000, kMostBatch = 100'000'000;
  CudaTableSettings settings;
  Options const options{
      {"--capacity", number(settings.capacity, std::size_t{128}, kMostRows)},
      {"--loads", numbers(settings.loads, 0.001, 1.0)},
      {"--hit-rates", numbers(settings.hit_rates, 0.0, 1.0)},
      {"--batch", number(settings.batch, std::size_t{1}, kMostBatch)},
      {"--dim", number(settings.dim, std::size_t{1}, std::size_t{65'536})},
      {"--warmups", number(settings.warmups, 0, 1'000'000)},
      {"--rounds", number(settings.rounds, 1, 1'000'000)},
      {"--seed", number(settings.seed, std::uint64_t{0}, ~std::uint64_t{0})},
      {"--device", number(settings.device, 0, 1'024)},
      {"--growth", &settings.growth},
      {"--first-rows", number(settings.first_rows, std::size_t{1}, kMostRows)},
      {"--last-rows", number(settings.last_rows, std::size_t{1}, kMostRows)},
      {"--step", number(settings.step, std::size_t{1}, kMostBatch)},
      {"--json", text(settings.json)},
      {"--commit", text(settings.commit)},
  };
  parse_options(arguments, options);
  check(settings);
  return settings;
}

std::string cuda_table_usage(std::string const& program) {
  return "Times a table of embeddings on a CUDA device beside HierarchicalKV, if this program was built with it, in\n"
         "turns, with random ids that are all different. Prints a table; what is found is checked.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --capacity N      slots of HierarchicalKV, a multiple of 128 (67108864)\n"
         "  --loads L,...     ids in either table, over N (0.5,0.75,0.95)\n"
         "  --hit-rates R,... share of the ids of an operation that are there (1,0.6,0)\n"
         "  --batch N         ids of one operation (1048576)\n"
         "  --dim D           float32 values of a vector (64)\n"
         "  --warmups N       operations before those that are timed (3)\n"
         "  --rounds N        operations of each system, in turns (15)\n"
         "  --seed S          of ids and vectors (1)\n"
         "  --device N        (0)\n"
         "  --growth          time training steps while Headway's table grows, and nothing else\n"
         "  --first-rows N    of that table before the steps (1048576)\n"
         "  --last-rows N     and after them (8388608)\n"
         "  --step N          new ids of a step, and as many old ones (131072)\n"
         "  --json FILE       write one JSON line a point\n"
         "  --commit TEXT     of the checkout, for these lines\n";
}

}  // namespace headway::benchmarks
