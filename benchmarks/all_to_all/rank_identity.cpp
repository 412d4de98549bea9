#include "rank_identity.hpp"

#include <cstdlib>
#include <string>
#include <utility>

namespace headway::benchmarks {

std::optional<RankIdentity> find_rank_identity(Settings const& settings) {
  if (settings.rank) {
    if (*settings.rank >= settings.ranks) {
      throw SettingsError("--rank " + std::to_string(*settings.rank) + " needs a larger --ranks");
    }
    return RankIdentity{.rank = *settings.rank, .ranks = settings.ranks};
  }
  constexpr std::pair<char const*, char const*> kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (auto const& [rank_name, size_name] : kLaunchers) {
    char const* const rank = std::getenv(rank_name);
    char const* const size = std::getenv(size_name);
    if (rank != nullptr && size != nullptr) return RankIdentity{.rank = std::atoi(rank), .ranks = std::atoi(size)};
  }
  return std::nullopt;
}

}  // namespace headway::benchmarks
