// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"

#include <string>
#include <string_view>

namespace headway::comm {

/// Text for the log about a connected group: its name and, by transport, its peers.
/// Example: "group 'bags' of 8 ranks: shm with get to 1-3; tcp to 4-7".
[[nodiscard]] std::string describe_connection(Endpoint const& endpoint, std::string_view name);

}  // namespace headway::comm
