// SPDX-License-Identifier: Apache-2.0
#include "exchange/inputs.hpp"

#include <algorithm>

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

}  // namespace headway::embedding
