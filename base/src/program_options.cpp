// SPDX-License-Identifier: Apache-2.0
#include "headway/base/program_options.hpp"

#include "headway/base/log.hpp"
#include "headway/base/status.hpp"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace headway::base {

std::int64_t ProgramOptions::whole_number(std::string const& name, std::string const& value, std::int64_t least) {
  char* end = nullptr;
  errno = 0;
  auto const number = std::strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0' || errno != 0 || number < least || number > 2'000'000'000) {
    throw UsageError(name + " must be a number from " + std::to_string(least) + ", not \"" + value + "\"");
  }
  return number;
}

double ProgramOptions::real_number(std::string const& name, std::string const& value) {
  char* end = nullptr;
  auto const number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !std::isfinite(number) || number < 0) {
    throw UsageError(name + " must be a number from 0, not \"" + value + "\"");
  }
  return number;
}

void ProgramOptions::parse(std::vector<std::string> const& words) const {
  for (std::size_t i = 0; i < words.size(); i += 2) {
    auto const found = options_.find(words[i]);
    if (found == options_.end()) throw UsageError("unknown option " + words[i]);
    if (i + 1 == words.size()) throw UsageError(words[i] + " needs a value");
    found->second(words[i + 1]);
  }
}

int run_program(char const* name, char const* usage, std::vector<std::string> const& words,
                std::function<void()> const& run) {
  if (words == std::vector<std::string>{"--help"}) {
    std::fputs(usage, stdout);
    return 0;
  }
  try {
    base::check_log_variable();
    run();
    return 0;
  } catch (UsageError const& error) {
    std::fprintf(stderr, "%s: %s (see %s --help)\n", name, error.what(), name);
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace headway::base
