#pragma once

#include "connect_in_threads.hpp"
#include "engines/verbs/device.hpp"
#include "engines/verbs/endpoint.hpp"

namespace headway::comm {

/// Connects a rank on the first usable device, with `num_rails` queue pairs to each peer.
inline std::unique_ptr<Endpoint> connect_verbs(int rank, int size, std::size_t landing_bytes, Store& store,
                                               int num_rails) {
  auto lifelines = connect_test_lifelines(rank, size, landing_bytes, store);
  auto address = verbs::choose_address("", lifelines);
  return make_verbs_endpoint(
      rank, size, std::move(lifelines), landing_bytes,
      {.address = std::move(address), .num_rails = num_rails, .cache_bytes = std::size_t{64} << 20});
}

/// verbs with one queue pair to each peer.
struct Verbs {
  static constexpr char const* kName = "verbs";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    return connect_verbs(rank, size, landing_bytes, store, 1);
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<Verbs>(size, landing_bytes);
  }
};

}  // namespace headway::comm
