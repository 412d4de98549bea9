// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rank_program.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Traffic of a run.
enum class PutMode {
  kPingPong,  ///< One message at a time, back and forth.
  kStream,    ///< Messages in one direction, as many in flight as the system allows.
};

/// Options of the command line.
struct PutSettings : RankSettings {
  PutMode mode = PutMode::kPingPong;
  std::vector<std::size_t> sizes{8};
  std::size_t rounds = 100;  ///< Timed turns of each system. In a turn one system sends `calls` messages.
  std::size_t calls = 100;   ///< Messages (round trips or one way) per turn.
  std::string device;        ///< DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX; empty: the first that is up.
};

/// @throws SettingsError
PutSettings parse_put_settings(Arguments arguments);
/// Text of --help.
std::string put_usage(std::string const& program);

}  // namespace headway::benchmarks
