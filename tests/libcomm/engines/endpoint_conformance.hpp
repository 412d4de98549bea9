#pragma once

#include "loss_conformance.hpp"
#include "memory_conformance.hpp"
#include "process_conformance.hpp"
#include "put_conformance.hpp"
#include "sleep_conformance.hpp"
#include "traffic_conformance.hpp"

#include <gtest/gtest.h>

#include <string>

/// The contract of Endpoint as tests. An engine is a struct with
///   static constexpr char const* kName;
///   static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes);
/// and, if its ranks may be processes,
///   static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store);
namespace headway::comm {

struct EngineName {
  template <typename Engine>
  static std::string GetName(int) {
    return Engine::kName;
  }
};

}  // namespace headway::comm

/// Runs the suite on each engine of `Engines`, a testing::Types.
#define HEADWAY_TEST_ENDPOINTS(Prefix, Engines)                                   \
  INSTANTIATE_TYPED_TEST_SUITE_P(Prefix, PutConformance, Engines, EngineName);    \
  INSTANTIATE_TYPED_TEST_SUITE_P(Prefix, MemoryConformance, Engines, EngineName); \
  INSTANTIATE_TYPED_TEST_SUITE_P(Prefix, SleepConformance, Engines, EngineName);  \
  INSTANTIATE_TYPED_TEST_SUITE_P(Prefix, LossConformance, Engines, EngineName);   \
  INSTANTIATE_TYPED_TEST_SUITE_P(Prefix, TrafficConformance, Engines, EngineName)

/// What holds besides where ranks are processes.
#define HEADWAY_TEST_PROCESS_ENDPOINTS(Prefix, Engines) \
  INSTANTIATE_TYPED_TEST_SUITE_P(Prefix, ProcessConformance, Engines, EngineName)
