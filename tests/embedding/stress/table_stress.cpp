// SPDX-License-Identifier: Apache-2.0

// Command line of the table stress test: plays random histories for a given time. README.md in this folder explains it.

#include "table_history.hpp"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace headway::embedding {
namespace {

#if HEADWAY_TEST_CUDA_TABLES
constexpr char kProgram[] = "cuda_table_stress";
#else
constexpr char kProgram[] = "table_stress";
#endif
constexpr char kUsage[] =
    " [--seed S] [--seconds N] [--histories H] [--threads T]\n"
    "Plays the histories of seeds S, S + 1, ... (default 1) for N seconds (default 60), and H of them at most.\n"
    "Tables on the CPU have up to T threads (default 3). It exits with 77 where tables are to be on a CUDA device and\n"
    "there is none.\n";
constexpr int kFailed = 1, kBadUsage = 2, kNoDevice = 77;  // CTest counts 77 as skipped.

struct Arguments {
  std::uint64_t seed = 1, seconds = 60, histories = std::numeric_limits<std::uint64_t>::max();
  int most_threads = 3;  ///< Largest number of threads of a CPU table.
};

/// Parses a number in [least, most]. @throws std::invalid_argument that names the option
std::uint64_t parse_number(std::string_view option, std::string_view text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw std::invalid_argument(std::string(option) + " must be a number from " + std::to_string(least) + " to " +
                                std::to_string(most) + ", not '" + std::string(text) + "'");
  }
  return value;
}

Arguments parse_arguments(std::vector<std::string_view> const& words) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max(), kMostSeconds = 1'000'000;
  Arguments arguments;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    auto const option = words[i];
    if (i + 1 == words.size()) throw std::invalid_argument(std::string(option) + " needs a value, or is unknown");
    if (option == "--seed")
      arguments.seed = parse_number(option, words[i + 1], 0, kMost);
    else if (option == "--seconds")
      arguments.seconds = parse_number(option, words[i + 1], 1, kMostSeconds);
    else if (option == "--histories")
      arguments.histories = parse_number(option, words[i + 1], 1, kMost);
    else if (option == "--threads")
      arguments.most_threads = static_cast<int>(parse_number(option, words[i + 1], 1, 256));
    else
      throw std::invalid_argument("unknown option " + std::string(option));
  }
  return arguments;
}

/// Plays one history and prints the difference, if there is one. @returns whether there was none
bool play(std::uint64_t seed, int most_threads, std::uint64_t& num_operations) {
  std::optional<TableHistory> history;
  std::string what;
  try {
    history.emplace(seed, most_threads);
    history->play();
  } catch (std::exception const& error) {
    what = error.what();
  }
  if (history) num_operations += history->num_operations();
  if (what.empty()) return true;
  auto const at = history ? history->describe() : "its beginning";
  std::printf("seed %llu: %s\n  at %s\n  replay: %s --seed %llu --histories 1 --threads %d\n",
              static_cast<unsigned long long>(seed), what.c_str(), at.c_str(), kProgram,
              static_cast<unsigned long long>(seed), most_threads);
  std::fflush(stdout);
  return false;
}

int run(Arguments const& arguments) {
  using Clock = std::chrono::steady_clock;
  auto const end = Clock::now() + std::chrono::seconds(arguments.seconds);
  auto next_said = Clock::now();
  std::uint64_t num_histories = 0, num_operations = 0, num_differences = 0;
  for (; num_histories < arguments.histories && Clock::now() < end; ++num_histories) {
    std::uint64_t const seed = arguments.seed + num_histories;
    if (Clock::now() >= next_said) {  // If a sanitizer ends the program, the failing seed is close to this one.
      std::printf("from seed %llu on\n", static_cast<unsigned long long>(seed));
      std::fflush(stdout);
      next_said = Clock::now() + std::chrono::seconds(1);
    }
    if (!play(seed, arguments.most_threads, num_operations)) ++num_differences;
  }
  std::printf("%llu histories, %llu operations, %llu differences\n", static_cast<unsigned long long>(num_histories),
              static_cast<unsigned long long>(num_operations), static_cast<unsigned long long>(num_differences));
  return num_differences == 0 ? 0 : kFailed;
}

}  // namespace
}  // namespace headway::embedding

int main(int argc, char** argv) {
  using namespace headway::embedding;
  try {
    auto const arguments = parse_arguments({argv + 1, argv + argc});
#if HEADWAY_TEST_CUDA_TABLES
    if (!has_cuda_device()) {
      std::puts("this host has no CUDA device");
      return kNoDevice;
    }
#endif
    return run(arguments);
  } catch (std::invalid_argument const& error) {
    std::fprintf(stderr, "%s: %s\nusage: %s%s", kProgram, error.what(), kProgram, kUsage);
    return kBadUsage;
  }
}
