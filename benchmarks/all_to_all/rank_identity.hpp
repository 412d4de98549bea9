#pragma once

#include "settings.hpp"

#include <optional>

namespace headway::benchmarks {

/// Rank and size from --rank and --ranks, or from the variables of mpirun and srun; none if neither is set.
/// @throws SettingsError if --rank is not below --ranks.
std::optional<RankIdentity> find_rank_identity(Settings const& settings);

}  // namespace headway::benchmarks
