#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"

#include <cstddef>
#include <memory>
#include <ostream>
#include <vector>

namespace headway::comm {

/// An engine under test. It is a value, so the conformance suite is compiled once for all engines.
struct TestedEngine {
  char const* name;
  std::vector<std::unique_ptr<Endpoint>> (*connect)(int size, std::size_t landing_bytes);
  /// Null if ranks cannot be processes.
  std::unique_ptr<Endpoint> (*connect_rank)(int rank, int size, std::size_t landing_bytes, Store& store);
};

inline std::ostream& operator<<(std::ostream& out, TestedEngine const& engine) { return out << engine.name; }

}  // namespace headway::comm
