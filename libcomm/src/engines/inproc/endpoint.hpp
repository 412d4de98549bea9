#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm {

/// What inproc endpoints claim to be able to, so that tests reach every way of moving large payloads.
struct InprocTraits {
  bool can_get = true;
  bool can_put_exposed = false;
  std::size_t piece_bytes = PeerTraits::kNoLimit;
};

/// Endpoints for ranks that are threads of this process: the reference of the transport contract.
std::vector<std::unique_ptr<Endpoint>> make_inproc_endpoints(int size, std::size_t landing_bytes,
                                                             InprocTraits traits = {});

/// An endpoint, and random text that all ranks have and no other group has.
struct InprocConnection {
  std::unique_ptr<Endpoint> endpoint;
  std::string generation;
};

/// The same, each rank getting its own: ranks meet through `store`, which must be of this process.
InprocConnection connect_inproc_endpoint(int rank, int size, std::size_t landing_bytes, Store& store,
                                         std::string const& name, std::chrono::milliseconds timeout);

}  // namespace headway::comm
