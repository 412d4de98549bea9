#pragma once

#include "connect_in_threads.hpp"
#include "engines/verbs/device.hpp"
#include "engines/verbs/endpoint.hpp"

namespace headway::comm {

struct Verbs {
  static constexpr char const* kName = "verbs";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store) {
    auto const lifelines = connect_test_lifelines(rank, size, landing_bytes, store);
    return make_verbs_endpoint(rank, size, lifelines, landing_bytes, verbs::choose_address("", lifelines));
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes) {
    return connect_in_threads<Verbs>(size, landing_bytes);
  }
};

}  // namespace headway::comm
