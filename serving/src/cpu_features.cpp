// SPDX-License-Identifier: Apache-2.0
#include "cpu_features.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace headway::serving {

std::vector<std::string> missing_cpu_features(std::span<std::string const> wanted,
                                              std::filesystem::path const& cpuinfo) {
  std::set<std::string> found;
  utsname names{};
  if (uname(&names) == 0) found.insert(names.machine);
  std::ifstream file(cpuinfo);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream flags(line.substr(std::min(line.size(), line.find(':') + 1)));
    found.insert(std::istream_iterator<std::string>(flags), {});
    break;  // Processors of one machine have the same.
  }
  std::vector<std::string> missing;
  std::ranges::copy_if(wanted, std::back_inserter(missing), [&](auto const& each) { return !found.contains(each); });
  return missing;
}

}  // namespace headway::serving
