// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange.hpp"
#include "json_object.hpp"
#include "rank_barrier.hpp"
#include "sample_summary.hpp"
#include "settings.hpp"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Inputs of a measurement on one rank.
struct RankContext {
  /// Connects the ranks to the system under test so that a rank may run `lag` exchanges ahead. `name` must be unique
  /// in this run.
  using Connect = std::function<std::unique_ptr<Exchange>(RankContext const&, int lag, std::string const& name)>;

  Settings const& settings;
  RankIdentity identity;
  std::filesystem::path store;  ///< Directory that all ranks share; they find each other through files in it.
  std::string system;           ///< Name of the system under test, for the points (printed JSON lines).
  Connect connect;
  Allocate allocate;  ///< Allocates the send and receive buffers.
  RankBarrier& barrier;

  [[nodiscard]] bool is_root() const { return identity.rank == 0; }
  /// Allocates one set of buffers for each call that may be in flight: lag + 1.
  [[nodiscard]] std::vector<CallBuffers> make_buffers(std::size_t bytes_per_rank, int lag) const;
  /// Parameters that every point has.
  [[nodiscard]] JsonObject params(std::size_t bytes_per_rank, int lag) const;
};

/// Adds the fields of a summary, and the rate of its median for `bytes_per_rank`.
void add_summary(JsonObject& point, SampleSummary const& summary, std::size_t bytes_per_rank);

}  // namespace headway::benchmarks
