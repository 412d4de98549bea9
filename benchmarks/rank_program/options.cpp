// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

namespace headway::benchmarks {

void parse_options(Arguments arguments, Options const& options) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view const name = arguments[i];
    auto const option = options.find(name);
    if (option == options.end()) throw SettingsError("unknown option " + std::string(name) + " (see --help)");
    // A flag such as --bind stands alone; all other options take the next argument as their value.
    if (auto const flag = std::get_if<bool*>(&option->second)) {
      **flag = true;
    } else if (i + 1 == arguments.size()) {
      throw SettingsError(std::string(name) + " needs a value");
    } else {
      std::get<Setter>(option->second)(name, arguments[++i]);
    }
  }
}

void refuse(std::string_view option, std::string_view text, std::string const& expected) {
  throw SettingsError(std::string(option) + " " + std::string(text) + ": " + expected + " expected");
}

}  // namespace headway::benchmarks
