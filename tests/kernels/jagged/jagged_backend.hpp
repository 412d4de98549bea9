// SPDX-License-Identifier: Apache-2.0

// Jagged kernels behind one interface, so that each test runs on the CPU, on an emulated device and on a CUDA device.

#pragma once

#include "backend_memory.hpp"
#include "backend_suite.hpp"
#include "headway/kernels/jagged_moves.hpp"
#include "headway/kernels/jagged_offsets.hpp"
#include "headway/kernels/jagged_sums.hpp"
#include "headway/kernels/run_lengths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::kernels {

/// Interface of a backend that runs jagged kernels. The methods are the functions of the same names in the headers
/// above. Calls return when the work is complete.
class JaggedBackend : public BackendMemory {
 public:
  virtual void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors) = 0;
  virtual void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out) = 0;
  virtual void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out) = 0;
  virtual void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors) = 0;
  virtual void find_run_lengths(RunLengths const& runs) = 0;
  virtual void find_offsets(MovedLengths const& lengths) = 0;
  virtual void count_rows(SegmentGroups const& groups) = 0;
};

/// Backends that this test program is linked with.
std::vector<NamedBackend<JaggedBackend>> jagged_backends();

using JaggedKernels = BackendSuite<JaggedBackend>;

/// Exclusive prefix sum with the total at the end.
inline std::vector<std::int64_t> offsets_of(std::vector<std::int64_t> const& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (auto const length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

template <class T>
std::vector<T> to_vector(std::span<T> values) {
  return {values.begin(), values.end()};
}

}  // namespace headway::kernels
