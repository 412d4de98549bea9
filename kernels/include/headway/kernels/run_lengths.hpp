// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/executor.hpp"

#include <cstdint>

namespace headway::kernels {

/// Run-length encoding of a list. The number of runs is known only where it is computed, so outputs have room for
/// `size` entries; entries behind the last run are 0.
///
/// Example: keys 7 7 5 7 give values 7 5 7 0, lengths 2 1 1 0, run_of 0 0 1 2, num_runs 3.
struct RunLengths {
  enum class KeyType : std::uint8_t { kInt32, kInt64 };

  KeyType type = KeyType::kInt64;
  std::int64_t size = 0;
  void const* keys = nullptr;        ///< (size)
  void* values = nullptr;            ///< (size), type of the keys: key of each run.
  std::int64_t* lengths = nullptr;   ///< (size)
  std::int64_t* run_of = nullptr;    ///< (size): index of the run that contains each entry.
  std::int64_t* num_runs = nullptr;  ///< (1)
};

/// Encodes on the CPU, in two passes.
void find_run_lengths(RunLengths const& runs, Executor const& executor);

/// Encodes on a device: a scan and two launches; never waits on the host.
/// @param scratch run_lengths_scratch_bytes() bytes; in use until the stream has passed the call
void find_run_lengths_async(RunLengths const& runs, void* scratch, std::int64_t scratch_bytes, CudaStream stream);
[[nodiscard]] std::int64_t run_lengths_scratch_bytes(RunLengths const& runs);

}  // namespace headway::kernels
