// SPDX-License-Identifier: Apache-2.0
#include "headway/comm/group_environment.hpp"

#include "headway/base/status.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

namespace headway::comm {

namespace {

std::string variable(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";
  auto const first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhiteSpace) - first + 1);
}

std::string read_secret() {
  auto secret = variable("HEADWAY_GROUP_SECRET");
  std::string name = "HEADWAY_GROUP_SECRET";
  if (auto const path = variable("HEADWAY_GROUP_SECRET_FILE"); !path.empty()) {
    base::expects(secret.empty(), "set HEADWAY_GROUP_SECRET or HEADWAY_GROUP_SECRET_FILE, not both");
    name = "HEADWAY_GROUP_SECRET_FILE";
    std::ifstream file(path);
    base::expects(file.is_open(), name + ": " + path + " cannot be read");
    std::string const text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    secret = stripped(text);
    base::expects(!secret.empty(), name + ": " + path + " is empty");
  }
  base::expects(secret.empty() || secret.size() >= kMinSecretBytes,
                name + ": the secret has " + std::to_string(secret.size()) + " bytes, and " +
                    std::to_string(kMinSecretBytes) + " are needed");
  return secret;
}

Transport read_transport(Transport fallback) {
  using enum Transport;
  static std::map<std::string, Transport, std::less<>> const names{
      {"auto", kAuto}, {"shm", kShm}, {"tcp", kTcp}, {"verbs", kVerbs}};
  auto const wanted = variable("HEADWAY_TRANSPORT");
  if (wanted.empty()) return fallback;
  auto const found = names.find(wanted);
  base::expects(found != names.end(), "HEADWAY_TRANSPORT must be auto, shm, tcp or verbs, not '" + wanted + "'");
  return found->second;
}

}  // namespace

void read_group_environment(GroupOptions& options) {
  if (auto secret = read_secret(); !secret.empty()) options.secret = std::move(secret);
  options.transport = read_transport(options.transport);
  if (auto interface = variable("HEADWAY_INTERFACE"); !interface.empty()) options.interface = std::move(interface);
  if (auto device = variable("HEADWAY_RDMA_DEVICE"); !device.empty()) options.rdma_device = std::move(device);
}

}  // namespace headway::comm
