// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"

#include <cstddef>
#include <memory>
#include <ostream>
#include <vector>

namespace headway::comm {

/// A transport under test. It is a value, so the conformance suite is compiled once for all transports.
struct TestedTransport {
  char const* name;
  std::vector<std::unique_ptr<Endpoint>> (*connect)(int size, std::size_t receive_buffer_bytes);
  /// Null if ranks cannot be processes.
  std::unique_ptr<Endpoint> (*connect_rank)(int rank, int size, std::size_t receive_buffer_bytes, Store& store);
};

inline std::ostream& operator<<(std::ostream& out, TestedTransport const& transport) { return out << transport.name; }

}  // namespace headway::comm
