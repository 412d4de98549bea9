// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

namespace headway::serving {

/// Connects the ranks of a server, again after each loss of a rank. generations.cpp explains how they find the same
/// group. For one thread.
class Generations {
 public:
  /// @param folder shared by all ranks; empty or absent when the server starts
  Generations(std::filesystem::path folder, int rank, int size, comm::GroupOptions options);

  /// Connects this rank with all others, in a newer group than before. Waits for ranks that are not there.
  /// @param may_go_on called every 100 ms; false ends the call
  /// @returns null if `may_go_on` ended it
  /// @throws base::SystemError if the folder cannot be used
  [[nodiscard]] std::shared_ptr<comm::Group> connect(std::function<bool()> const& may_go_on);

 private:
  /// Newest generations that this rank and other ones have announced; -1: none.
  struct Newest {
    std::int64_t own = -1, others = -1;
  };
  [[nodiscard]] Newest newest() const;
  void announce(std::int64_t generation) const;

  std::filesystem::path folder_;
  int rank_, size_;
  comm::GroupOptions options_;
  std::int64_t generation_ = -1;  ///< That this rank has announced last.
};

}  // namespace headway::serving
