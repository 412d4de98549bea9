// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/store.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm {

/// Capabilities that inproc endpoints report, so that tests reach every path for large payloads.
/// The defaults are those of real use: get() works, and windows are not needed then.
struct InprocTraits {
  bool can_get = true;
  bool can_put_to_window = false;
  std::size_t piece_bytes = PeerTraits::kNoLimit;  ///< Callers cut larger payloads for a window into such puts.
};

/// Endpoints for ranks that are threads of this process: the reference of the transport contract.
std::vector<std::unique_ptr<Endpoint>> make_inproc_endpoints(int size, std::size_t receive_buffer_bytes,
                                                             InprocTraits traits = {});

/// An endpoint, and a random text that all ranks of one group share and no other group has.
struct InprocConnection {
  std::unique_ptr<Endpoint> endpoint;
  std::string generation;
};

/// Makes the endpoint of one rank. Ranks find each other through `store`, which must belong to this process.
InprocConnection connect_inproc_endpoint(int rank, int size, std::size_t receive_buffer_bytes, Store& store,
                                         std::string const& name, std::chrono::milliseconds timeout);

}  // namespace headway::comm
