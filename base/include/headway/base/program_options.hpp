// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace headway::base {

/// Options of a program, each with one value: --name value.
class ProgramOptions {
 public:
  /// Called with the value of an option. @throws UsageError for a bad one
  using Set = std::function<void(std::string const& value)>;

  void add(std::string const& name, Set set) { options_[name] = std::move(set); }
  void add_text(std::string const& name, std::string& target) {
    add(name, [&target](std::string const& value) { target = value; });
  }
  void add_path(std::string const& name, std::filesystem::path& target) {
    add(name, [&target](std::string const& value) { target = value; });
  }
  /// An integer from `least` to 2 * 10^9.
  template <class Number>
  void add_number(std::string const& name, Number& target, std::int64_t least) {
    add(name, [&target, name, least](std::string const& value) {
      target = static_cast<Number>(whole_number(name, value, least));
    });
  }
  /// A duration in units of its type.
  template <class Duration>
  void add_duration(std::string const& name, Duration& target, std::int64_t least) {
    add(name,
        [&target, name, least](std::string const& value) { target = Duration(whole_number(name, value, least)); });
  }
  /// A number that is not negative.
  void add_real(std::string const& name, double& target) {
    add(name, [&target, name](std::string const& value) { target = real_number(name, value); });
  }

  /// Sets the targets of the options of a command line.
  /// @throws UsageError that names an unknown option, a missing value, or a bad one
  void parse(std::vector<std::string> const& words) const;

 private:
  static std::int64_t whole_number(std::string const& name, std::string const& value, std::int64_t least);
  static double real_number(std::string const& name, std::string const& value);

  std::map<std::string, Set> options_;
};

/// Runs a program: prints `usage` for --help, and errors to stderr.
/// @returns the exit status: 2 for a wrong command line, 1 for another error
int run_program(char const* name, char const* usage, std::vector<std::string> const& words,
                std::function<void()> const& run);

}  // namespace headway::base
