// SPDX-License-Identifier: Apache-2.0
#include "put_settings.hpp"

#include "verbs_channel.hpp"

namespace headway::benchmarks {

PutSettings parse_put_settings(Arguments arguments) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 26;
  PutSettings settings;
  Options const options{
      {"--mode", choice(settings.mode, {{"ping_pong", PutMode::kPingPong}, {"stream", PutMode::kStream}})},
      {"--sizes", numbers(settings.sizes, 1, kMaxBytes)},
      {"--rounds", number(settings.rounds, 1, 1'000'000)},
      {"--calls", number(settings.calls, 1u, VerbsChannel::kReceives - 1)},
      {"--device", [&](auto, auto text) { settings.device = text; }},
      {"--bind", &settings.bind},
      {"--time-limit", number(settings.time_limit, 1, 86'400)},
  };
  parse_options(arguments, options);
  return settings;
}

std::string put_usage(std::string const& program) {
  return "Times puts with tag of transport verbs between two ranks of this host beside RDMA WRITE_WITH_IMM of "
         "libibverbs\n"
         "alone, in turns, and prints one JSON line a point; every result is checked before and after.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --mode M          ping_pong (default) or stream, which is one way\n"
         "  --sizes B,...     bytes of a message (8)\n"
         "  --rounds N        turns of each system (100)\n"
         "  --calls N         messages of a turn (100)\n"
         "  --device D        DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX (the first that is up)\n"
         "  --bind            pin rank i to the i-th core\n"
         "  --time-limit S    end after this time (300)\n";
}

}  // namespace headway::benchmarks
