#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"

#include <cstddef>
#include <memory>
#include <ostream>
#include <vector>

namespace headway::comm {

/// An engine as the conformance suite sees it: a value, so that the suite is compiled once for all engines.
struct TestedEngine {
  char const* name;
  std::vector<std::unique_ptr<Endpoint>> (*connect)(int size, std::size_t landing_bytes);
  /// Null where ranks cannot be processes.
  std::unique_ptr<Endpoint> (*connect_rank)(int rank, int size, std::size_t landing_bytes, Store& store);
};

inline std::ostream& operator<<(std::ostream& out, TestedEngine const& engine) { return out << engine.name; }

}  // namespace headway::comm
