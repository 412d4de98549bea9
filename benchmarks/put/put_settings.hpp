#pragma once

#include "rank_program.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace headway::benchmarks {

enum class PutMode {
  kPingPong,  ///< One message at a time, there and back.
  kStream,    ///< Messages one way, as many in flight as the system allows.
};

/// What the command line asks for.
struct PutSettings : RankSettings {
  PutMode mode = PutMode::kPingPong;
  std::vector<std::size_t> sizes{8};
  std::size_t rounds = 100;  ///< Turns of each system.
  std::size_t calls = 100;   ///< Messages (there and back, or one way) of a turn.
  std::string device;        ///< DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX; empty: the first that is up.
};

/// @throws SettingsError
PutSettings parse_put_settings(Arguments arguments);
/// What --help prints.
std::string put_usage(std::string const& program);

}  // namespace headway::benchmarks
