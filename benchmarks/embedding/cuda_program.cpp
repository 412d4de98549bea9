#include "cuda_table_settings.hpp"
#include "measure_cuda_growth.hpp"
#include "measure_cuda_table.hpp"
#include "rank_program.hpp"

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_main(argc, argv, cuda_table_usage, [](Arguments arguments) {
    auto const settings = parse_cuda_table_settings(arguments);
    return settings.growth ? measure_cuda_growth(settings) : measure_cuda_table(settings);
  });
}
