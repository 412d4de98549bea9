#pragma once

#include "headway/embedding/features.hpp"

namespace headway::embedding {

/// Sizes of the joined features. @throws comm::UsageError unless `out` has them, and weights are empty or one per id
JoinedSizes expect_room(std::span<Feature const> features, JoinedFeatures const& out);

}  // namespace headway::embedding
