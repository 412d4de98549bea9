#include "put_settings.hpp"

#include "bare_end.hpp"
#include "settings.hpp"

#include <charconv>
#include <span>
#include <string_view>

namespace headway::benchmarks {

namespace {

std::size_t parse_count(std::string_view option, std::string_view text, std::size_t highest) {
  std::size_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > highest) {
    throw SettingsError(std::string(option) + " " + std::string(text) + ": a number from 1 to " +
                        std::to_string(highest) + " expected");
  }
  return value;
}

std::vector<std::size_t> parse_sizes(std::string_view option, std::string_view text) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 26;
  std::vector<std::size_t> sizes;
  while (true) {
    auto const comma = text.find(',');
    sizes.push_back(parse_count(option, text.substr(0, comma), kMaxBytes));
    if (comma == std::string_view::npos) return sizes;
    text.remove_prefix(comma + 1);
  }
}

PutMode parse_mode(std::string_view text) {
  if (text == "ping_pong") return PutMode::kPingPong;
  if (text == "stream") return PutMode::kStream;
  throw SettingsError("--mode " + std::string(text) + ": ping_pong or stream expected");
}

void set(PutSettings& settings, std::string_view option, std::string_view text) {
  if (option == "--mode") {
    settings.mode = parse_mode(text);
  } else if (option == "--sizes") {
    settings.sizes = parse_sizes(option, text);
  } else if (option == "--rounds") {
    settings.rounds = parse_count(option, text, 1'000'000);
  } else if (option == "--calls") {
    settings.calls = parse_count(option, text, BareEnd::kReceives - 1);
  } else if (option == "--device") {
    settings.device = text;
  } else if (option == "--time-limit") {
    settings.time_limit = std::chrono::seconds(parse_count(option, text, 86'400));
  } else {
    throw SettingsError("unknown option " + std::string(option) + " (see --help)");
  }
}

}  // namespace

PutSettings parse_put_settings(int argc, char const* const* argv) {
  PutSettings settings;
  std::span const arguments(argv + 1, static_cast<std::size_t>(argc - 1));
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view const option = arguments[i];
    if (option == "--help") {
      settings.help = true;
    } else if (option == "--bind") {
      settings.bind = true;
    } else if (i + 1 == arguments.size()) {
      throw SettingsError(std::string(option) + " needs a value");
    } else {
      set(settings, option, arguments[++i]);
    }
  }
  return settings;
}

std::string put_usage(std::string const& program) {
  return "Times puts with tag of engine verbs between two ranks of this host beside RDMA WRITE_WITH_IMM of libibverbs\n"
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
