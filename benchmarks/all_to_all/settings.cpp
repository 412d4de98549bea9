#include "settings.hpp"

#include <charconv>
#include <functional>
#include <map>
#include <span>
#include <string_view>

namespace headway::benchmarks {

namespace {

[[noreturn]] void refuse(std::string_view option, std::string_view text, std::string_view expected) {
  throw SettingsError(std::string(option) + " " + std::string(text) + ": " + std::string(expected) + " expected");
}

template <typename Number>
Number parse_number(std::string_view option, std::string_view text, Number lowest, Number highest) {
  Number value{};
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < lowest || value > highest) {
    refuse(option, text, "a number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  }
  return value;
}

template <typename Number>
std::vector<Number> parse_numbers(std::string_view option, std::string_view text, Number lowest, Number highest) {
  std::vector<Number> values;
  while (true) {
    auto const comma = text.find(',');
    values.push_back(parse_number<Number>(option, text.substr(0, comma), lowest, highest));
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

template <typename Value>
Value parse_choice(std::string_view option, std::string_view text, std::map<std::string_view, Value> const& choices) {
  if (auto const found = choices.find(text); found != choices.end()) return found->second;
  std::string names;
  for (auto const& [name, value] : choices) names += (names.empty() ? "" : ", ") + std::string(name);
  refuse(option, text, "one of " + names);
}

std::map<std::string_view, Mode> const& modes() {
  static std::map<std::string_view, Mode> const names{
      {"calls", Mode::kCalls}, {"sequence", Mode::kSequence}, {"lag_cost", Mode::kLagCost},
      {"idle", Mode::kIdle},   {"memory", Mode::kMemory},     {"copy", Mode::kCopy},
  };
  return names;
}

std::map<std::string_view, Split> const& splits() {
  static std::map<std::string_view, Split> const names{
      {"even", Split::kEven}, {"zipf", Split::kZipf}, {"incast", Split::kIncast}};
  return names;
}

using Setter = std::function<void(Settings&, std::string_view option, std::string_view text)>;

template <typename Number>
Setter number(Number Settings::*field, Number lowest, Number highest) {
  return [=](Settings& settings, std::string_view option, std::string_view text) {
    settings.*field = parse_number<Number>(option, text, lowest, highest);
  };
}

template <typename Number>
Setter optional_number(std::optional<Number> Settings::*field, Number lowest, Number highest) {
  return [=](Settings& settings, std::string_view option, std::string_view text) {
    settings.*field = parse_number<Number>(option, text, lowest, highest);
  };
}

template <typename Number>
Setter numbers(std::vector<Number> Settings::*field, Number lowest, Number highest) {
  return [=](Settings& settings, std::string_view option, std::string_view text) {
    settings.*field = parse_numbers<Number>(option, text, lowest, highest);
  };
}

constexpr std::size_t kMaxBytes = std::size_t{1} << 36;
constexpr int kMaxRanks = 256;
constexpr int kMaxLag = 64;

std::map<std::string_view, Setter> option_setters() {
  return {
      {"--mode", [](Settings& s, auto option, auto text) { s.mode = parse_choice(option, text, modes()); }},
      {"--ranks", number(&Settings::ranks, 1, kMaxRanks)},
      {"--rank", optional_number(&Settings::rank, 0, kMaxRanks - 1)},
      {"--store", [](Settings& s, auto, auto text) { s.store = text; }},
      {"--sizes", numbers(&Settings::sizes, std::size_t{0}, kMaxBytes)},
      {"--repetitions", number(&Settings::repetitions, std::size_t{1}, std::size_t{100'000'000})},
      {"--split",
       [](Settings& s, auto option, auto text) {
         s.split = parse_choice(option, text, splits());
         s.split_name = text;
       }},
      {"--lag", number(&Settings::lag, 0, kMaxLag)},
      {"--lags", numbers(&Settings::lags, 0, kMaxLag)},
      {"--counts", numbers(&Settings::counts, std::size_t{1}, std::size_t{100'000'000})},
      {"--slot-bytes", optional_number(&Settings::slot_bytes, std::size_t{64}, kMaxBytes)},
      {"--pull-bytes", optional_number(&Settings::pull_bytes, std::size_t{0}, kMaxBytes)},
      {"--engine",
       [](Settings& s, auto option, auto text) {
         std::map<std::string_view, std::string> const engines{
             {"auto", "auto"}, {"shm", "shm"}, {"tcp", "tcp"}, {"verbs", "verbs"}};
         s.engine = parse_choice(option, text, engines);
       }},
      {"--time-limit",
       [](Settings& s, auto option, auto text) {
         s.time_limit = std::chrono::seconds(parse_number<int>(option, text, 1, 86'400));
       }},
      {"--idle", number(&Settings::idle_s, 0.01, 3600.0)},
  };
}

}  // namespace

Settings parse_settings(int argc, char const* const* argv) {
  Settings settings;
  auto const setters = option_setters();
  std::span const arguments(argv + 1, static_cast<std::size_t>(argc - 1));
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view const option = arguments[i];
    if (option == "--help") {
      settings.help = true;
    } else if (option == "--bind") {
      settings.bind = true;
    } else if (auto const setter = setters.find(option); setter == setters.end()) {
      throw SettingsError("unknown option " + std::string(option) + " (see --help)");
    } else if (i + 1 == arguments.size()) {
      throw SettingsError(std::string(option) + " needs a value");
    } else {
      setter->second(settings, option, arguments[++i]);
    }
  }
  return settings;
}

std::string usage(std::string const& program) {
  return "Times all-to-alls and prints one JSON line a point; every result is checked before and after.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --mode M          calls (default), sequence, lag_cost, idle, memory or copy\n"
         "  --sizes B,...     bytes per rank, the total over all destinations (32768)\n"
         "  --repetitions N   timed calls of a point (by size)\n"
         "  --split S         even (default), zipf or incast (zipf with one hot rank)\n"
         "  --lag K           calls in flight less one (0)\n"
         "  --lags K,...      bounds that lag_cost compares (0,1,2,3,4)\n"
         "  --counts N,...    calls in a row for sequence (1,10,...,100000)\n"
         "  --idle S          seconds that idle lasts (2)\n"
         "  --bind            pin rank i to the i-th core\n"
         "  --time-limit S    end after this time (300)\n"
         "Headway alone:\n"
         "  --ranks N         processes to start\n"
         "  --slot-bytes B, --pull-bytes B, --engine auto|shm|tcp|verbs   as in GroupOptions\n"
         "Ranks started by another program:\n"
         "  --store DIR       empty directory that all ranks share; rank and size come from mpirun,\n"
         "  --rank R          or from this and --ranks\n";
}

}  // namespace headway::benchmarks
