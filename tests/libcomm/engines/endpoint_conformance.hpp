#pragma once

#include "endpoint_group.hpp"
#include "process_conformance.hpp"
#include "tested_engine.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

/// Tests of the Endpoint contract; they are in *_conformance.cpp. An engine under test is a struct with
///   static constexpr char const* kName;
///   static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t landing_bytes);
/// and, if its ranks may be processes,
///   static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t landing_bytes, Store& store);
namespace headway::comm {

/// Base of the suites. The parameter is the engine under test.
class EndpointConformance : public testing::TestWithParam<TestedEngine> {
 protected:
  static EndpointGroup connect(int size, std::size_t landing_bytes = std::size_t{1} << 20) {
    return EndpointGroup(GetParam().connect(size, landing_bytes));
  }
};

/// put(), its tags, its counts and its limits.
class PutConformance : public EndpointConformance {};
/// Exposed segments and get(): optional features besides put() into the landing segment.
class MemoryConformance : public EndpointConformance {};
/// arm(), sleep(), wake(), notices and file descriptors.
class SleepConformance : public EndpointConformance {};
/// Lost peers, and resources that an endpoint leaves behind.
class LossConformance : public EndpointConformance {};
/// All ranks exchange random messages at the same time.
class TrafficConformance : public EndpointConformance {};

/// The engines that a program tests.
template <typename... Engines>
struct TestedEngines {
  static auto in_threads() {
    return testing::Values(
        TestedEngine{.name = Engines::kName, .connect = Engines::connect, .connect_rank = nullptr}...);
  }
  static auto in_processes() {
    return testing::Values(
        TestedEngine{.name = Engines::kName, .connect = Engines::connect, .connect_rank = Engines::connect_rank}...);
  }
};

inline std::string engine_name(testing::TestParamInfo<TestedEngine> const& info) { return info.param.name; }

}  // namespace headway::comm

/// Runs the suite on each engine of `Engines`, a TestedEngines.
#define HEADWAY_TEST_ENDPOINTS(Prefix, Engines)                                            \
  INSTANTIATE_TEST_SUITE_P(Prefix, PutConformance, Engines::in_threads(), engine_name);    \
  INSTANTIATE_TEST_SUITE_P(Prefix, MemoryConformance, Engines::in_threads(), engine_name); \
  INSTANTIATE_TEST_SUITE_P(Prefix, SleepConformance, Engines::in_threads(), engine_name);  \
  INSTANTIATE_TEST_SUITE_P(Prefix, LossConformance, Engines::in_threads(), engine_name);   \
  INSTANTIATE_TEST_SUITE_P(Prefix, TrafficConformance, Engines::in_threads(), engine_name)

/// Also runs the tests of ranks as processes.
#define HEADWAY_TEST_PROCESS_ENDPOINTS(Prefix, Engines) \
  INSTANTIATE_TEST_SUITE_P(Prefix, ProcessConformance, Engines::in_processes(), engine_name)
