// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace headway::benchmarks {

/// A wrong command line; what() is one line.
class SettingsError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// The command line without the program's name.
using Arguments = std::span<char const* const>;
/// Parses `text` as the value of `option`. @throws SettingsError
using Setter = std::function<void(std::string_view option, std::string_view text)>;
/// Options of a program by name. An option that sets a bool takes no value.
using Options = std::map<std::string_view, std::variant<bool*, Setter>>;

/// Sets the fields of all given options. @throws SettingsError
void parse_options(Arguments arguments, Options const& options);

/// Always throws. @throws SettingsError "OPTION TEXT: EXPECTED expected"
[[noreturn]] void refuse(std::string_view option, std::string_view text, std::string const& expected);

template <typename Number>
Number parse_number(std::string_view option, std::string_view text, Number lowest, Number highest) {
  Number value{};
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < lowest || value > highest) {
    refuse(option, text, "a number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  }
  return value;
}

/// Returns a setter of `field`. The field must outlive it; this holds for the next functions too.
template <typename Field, typename Number>
Setter number(Field& field, Number lowest, Number highest) {
  return [&field, lowest, highest](std::string_view option, std::string_view text) {
    field = Field(parse_number(option, text, lowest, highest));
  };
}

/// Returns a setter for a list of numbers, separated by commas.
template <typename Number>
Setter numbers(std::vector<Number>& field, std::type_identity_t<Number> lowest, std::type_identity_t<Number> highest) {
  return [&field, lowest, highest](std::string_view option, std::string_view text) {
    field.clear();
    while (true) {
      auto const comma = text.find(',');
      field.push_back(parse_number(option, text.substr(0, comma), lowest, highest));
      if (comma == std::string_view::npos) return;
      text.remove_prefix(comma + 1);
    }
  };
}

template <typename Value>
Setter choice(Value& field, std::map<std::string_view, std::type_identity_t<Value>> choices) {
  return [&field, choices = std::move(choices)](std::string_view option, std::string_view text) {
    if (auto const found = choices.find(text); found != choices.end()) {
      field = found->second;
      return;
    }
    std::string names;
    for (auto const& [name, value] : choices) names += (names.empty() ? "" : ", ") + std::string(name);
    refuse(option, text, "one of " + names);
  };
}

}  // namespace headway::benchmarks
