// SPDX-License-Identifier: Apache-2.0
#include "table_settings.hpp"

namespace headway::benchmarks {

TableSettings parse_table_settings(Arguments arguments) {
  constexpr std::size_t kMostRows = 1'000'000'000, kMostBatch = 100'000'000;
  TableSettings settings;
  Options const options{
      {"--rows", number(settings.rows, std::size_t{1}, kMostRows)},
      {"--batch", number(settings.batch, std::size_t{1}, kMostBatch)},
      {"--step", number(settings.step, std::size_t{1}, kMostBatch)},
      {"--dim", number(settings.dim, std::size_t{1}, std::size_t{65'536})},
      {"--threads", number(settings.threads, 1, 1'024)},
      {"--rounds", number(settings.rounds, 1, 1'000'000)},
      {"--seed", number(settings.seed, std::uint64_t{0}, ~std::uint64_t{0})},
  };
  parse_options(arguments, options);
  return settings;
}

std::string table_usage(std::string const& program) {
  return "Times tables of embeddings beside a flat table and hash maps with a vector of rows, in turns: insertion of "
         "new ids from an\n"
         "empty table on, and finding random ones. Prints one JSON line a point; all that is found is checked.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --rows N     ids in the table at the end (4000000)\n"
         "  --batch N    ids of one find (1000000)\n"
         "  --step N     ids of one insertion (100000)\n"
         "  --dim D      float32 values of a vector (64)\n"
         "  --threads T  of each system, where it can (1)\n"
         "  --rounds N   finds of each system, in turns (7)\n"
         "  --seed S     of the ids (1)\n";
}

}  // namespace headway::benchmarks
