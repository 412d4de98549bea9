#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "headway/kernels/run_tasks.hpp"

#include <cstdint>

namespace headway::kernels {

/// The runs of equal neighbours in a list. How many there are is only known where they are computed, so outputs have
/// room for as many as there are entries; behind the last run they are 0.
///
/// Example: 7 7 5 7 has values 7 5 7 0, lengths 2 1 1 0, run_of 0 0 1 2, num_runs 3.
struct RunLengths {
  enum class KeyType : std::uint8_t { kInt32, kInt64 };

  KeyType type = KeyType::kInt64;
  std::int64_t size = 0;
  void const* keys = nullptr;        ///< (size)
  void* values = nullptr;            ///< (size), as keys: the key of each run.
  std::int64_t* lengths = nullptr;   ///< (size)
  std::int64_t* run_of = nullptr;    ///< (size): the number of the run that has each entry.
  std::int64_t* num_runs = nullptr;  ///< (1)
};

/// On the CPU, in two passes.
void find_run_lengths(RunLengths const& runs, RunTasks const& run_tasks);

/// On a device: a scan and two launches; waits for nothing.
/// @param scratch of so many bytes as scratch_bytes() says; needed until the stream is through
void find_run_lengths_async(RunLengths const& runs, void* scratch, std::int64_t scratch_bytes, CudaStream stream);
[[nodiscard]] std::int64_t run_lengths_scratch_bytes(RunLengths const& runs);

}  // namespace headway::kernels
