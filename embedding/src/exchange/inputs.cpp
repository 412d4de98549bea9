// SPDX-License-Identifier: Apache-2.0
#include "exchange/inputs.hpp"

#include "headway/base/status.hpp"

#include <algorithm>
#include <string>

namespace headway::embedding {

Inputs join(BatchDevice& device, std::span<Feature const> features) {
  auto const sizes = sizes_of(features);
  Inputs inputs{.ids = device.block<std::uint64_t>(sizes.ids),
                .tables = device.block<std::uint32_t>(sizes.ids),
                .offsets = device.block<std::int64_t>(sizes.has_bags ? sizes.bags + 1 : 0),
                .weights = device.block<float>(sizes.has_weights ? sizes.ids : 0),
                .num_bags = sizes.bags};
  device.join(features, {.ids = inputs.ids.span,
                         .tables = inputs.tables.span,
                         .offsets = inputs.offsets.span,
                         .weights = inputs.weights.span});
  if (std::ranges::any_of(features, [](Feature const& each) { return each.pooling == Pooling::kMean; })) {
    for (auto const& each : features) {
      inputs.are_means.insert(inputs.are_means.end(), each.num_bags(), each.pooling == Pooling::kMean);
    }
  }
  return inputs;
}

std::vector<Inputs> join_by_table(BatchDevice& device, std::span<Feature const> features,
                                  std::map<std::uint32_t, std::size_t> const& merged_of, std::size_t num_merged) {
  std::vector<std::vector<Feature>> by_merged(num_merged);
  for (auto const& feature : features) {
    auto const found = merged_of.find(feature.table);
    base::expects(found != merged_of.end(),
                  "feature " + std::string(feature.name) + ": there is no table " + std::to_string(feature.table));
    by_merged[found->second].push_back(feature);
  }
  std::vector<Inputs> inputs;
  for (auto const& of_table : by_merged) inputs.push_back(join(device, of_table));
  return inputs;
}

}  // namespace headway::embedding
