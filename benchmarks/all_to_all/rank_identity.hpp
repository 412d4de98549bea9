#pragma once

#include "settings.hpp"

#include <optional>

namespace headway::benchmarks {

/// From --rank and --ranks, else from the variables that mpirun and srun set; none where nobody has said.
/// @throws SettingsError where what is said makes no sense.
std::optional<RankIdentity> find_rank_identity(Settings const& settings);

}  // namespace headway::benchmarks
