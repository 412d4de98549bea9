// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "endpoint_group.hpp"
#include "process_conformance.hpp"
#include "tested_transport.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

/// Tests of the Endpoint contract; they are in *_conformance.cpp. A transport under test is a struct with
///   static constexpr char const* kName;
///   static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes);
/// and, if its ranks may be processes,
///   static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store);
namespace headway::comm {

/// Base of the suites. The parameter is the transport under test.
class EndpointConformance : public testing::TestWithParam<TestedTransport> {
 protected:
  static EndpointGroup connect(int size, std::size_t receive_buffer_bytes = std::size_t{1} << 20) {
    return EndpointGroup(GetParam().connect(size, receive_buffer_bytes));
  }
};

/// put(), its tags, its counts and its limits.
class PutConformance : public EndpointConformance {};
/// Windows and get(): optional features besides put() into the receive buffer.
class MemoryConformance : public EndpointConformance {};
/// arm(), sleep(), wake(), OOB messages and file descriptors.
class SleepConformance : public EndpointConformance {};
/// Lost peers, and resources that an endpoint leaves behind.
class LossConformance : public EndpointConformance {};
/// All ranks exchange random messages at the same time.
class TrafficConformance : public EndpointConformance {};

/// The transports that a program tests.
template <typename... Transports>
struct TestedTransports {
  static auto in_threads() {
    return testing::Values(
        TestedTransport{.name = Transports::kName, .connect = Transports::connect, .connect_rank = nullptr}...);
  }
  static auto in_processes() {
    return testing::Values(TestedTransport{
        .name = Transports::kName, .connect = Transports::connect, .connect_rank = Transports::connect_rank}...);
  }
};

inline std::string transport_name(testing::TestParamInfo<TestedTransport> const& info) { return info.param.name; }

}  // namespace headway::comm

/// Runs the suite on each transport of `Transports`, a TestedTransports.
#define HEADWAY_TEST_ENDPOINTS(Prefix, Transports)                                               \
  INSTANTIATE_TEST_SUITE_P(Prefix, PutConformance, Transports::in_threads(), transport_name);    \
  INSTANTIATE_TEST_SUITE_P(Prefix, MemoryConformance, Transports::in_threads(), transport_name); \
  INSTANTIATE_TEST_SUITE_P(Prefix, SleepConformance, Transports::in_threads(), transport_name);  \
  INSTANTIATE_TEST_SUITE_P(Prefix, LossConformance, Transports::in_threads(), transport_name);   \
  INSTANTIATE_TEST_SUITE_P(Prefix, TrafficConformance, Transports::in_threads(), transport_name)

/// Also runs the tests of ranks as processes.
#define HEADWAY_TEST_PROCESS_ENDPOINTS(Prefix, Transports) \
  INSTANTIATE_TEST_SUITE_P(Prefix, ProcessConformance, Transports::in_processes(), transport_name)
