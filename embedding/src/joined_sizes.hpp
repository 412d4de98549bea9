#pragma once

#include "headway/embedding/features.hpp"

namespace headway::embedding {

/// @throws comm::UsageError unless `out` is as large as joined features are, and weights are one each
JoinedSizes expect_room(std::span<Feature const> features, JoinedFeatures const& out);

}  // namespace headway::embedding
