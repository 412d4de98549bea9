// SPDX-License-Identifier: Apache-2.0

// Describes the options of merged tables in one line. Ranks compare their lines when they make a ShardedTable, and show
// them in the error if they differ. Row limits and eviction are left out: they may differ between ranks.

#include "headway/embedding/description.hpp"

#include <array>
#include <sstream>
#include <string_view>

namespace headway::embedding {

namespace {

// Names in the order of the enumerators of Dedup, InitialValues::Law and kernels::OptimizerKind.
constexpr std::array<std::string_view, 4> kDedups{"none", "first", "second", "both"};
constexpr std::array<std::string_view, 3> kLaws{"constant", "uniform", "normal"};
constexpr std::array<std::string_view, 5> kOptimizers{"SGD", "Adagrad", "row-wise Adagrad", "Adam", "row-wise Adam"};

}  // namespace

std::string describe(std::span<MergedTable const> tables, Dedup dedup) {
  std::ostringstream text;
  text.precision(17);  // All digits: options that differ in the last one disagree.
  text << "dedup " << kDedups[static_cast<std::size_t>(dedup)];
  for (auto const& table : tables) {
    auto const& options = table.options;
    auto const& values = options.initializer.values();
    auto const& optimizer = options.optimizer;
    text << "; tables";
    for (auto const number : table.tables) text << ' ' << number;
    text << ": dim " << options.dim << ", " << kLaws[static_cast<std::size_t>(values.law)] << '(' << values.base << ", "
         << values.width << ", seed " << values.seed << "), " << kOptimizers[static_cast<std::size_t>(optimizer.kind)]
         << "(epsilon " << optimizer.epsilon << ", betas " << optimizer.beta1 << ' ' << optimizer.beta2
         << ", accumulator " << optimizer.initial_accumulator << ", weight decay " << optimizer.weight_decay
         << (optimizer.decay == kernels::WeightDecay::kL2 ? " L2" : " decoupled") << "), min_count "
         << options.min_count << ", hot_count " << options.hot_count << ", time_to_live " << options.time_to_live
         << (table.reads_unknown_as_zeros ? ", unknown ids read as zeros" : "");
  }
  return text.str();
}

}  // namespace headway::embedding
