#include "measure_table.hpp"
#include "rank_program.hpp"
#include "table_settings.hpp"

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_main(argc, argv, table_usage,
                  [](Arguments arguments) { return measure_table(parse_table_settings(arguments)); });
}
