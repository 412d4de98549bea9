// SPDX-License-Identifier: Apache-2.0
#pragma once

// State mirror: the host's late view of counters that only the device knows (TableState).
//
// Idea: after a call that may change counters, the host enqueues a copy of them to pinned memory and an event. It does
// not wait for these on the normal path. It takes the newest copy that has arrived, and adds the keys of all
// batches enqueued after that copy: a batch of n keys can add at most n rows and n used slots of the key index. So
//   counter now <= counter of the newest copy + num_unknown_keys().
//
// Example: the newest copy says 100 rows. Batches of 40 and 30 keys follow, their copies are under way.
//   num_unknown_keys() is 70, so there are at most 170 rows. The first copy arrives and says 120, since 20 of the 40
//   keys were new: num_unknown_keys() drops to 30, the bound to 150.
//
// Invariants: num_unknown_keys_ = sum of num_keys of the copies under way + num_keys_after_last_.
//   Copies arrive in the order in which they were enqueued. Removals may make the bound too high, never too low.
// Complexity: one asynchronous copy of a TableState and one event per call, no wait. If kNumCopies are under way, no
//   further copy is made until one arrives; its keys then belong to the next copy.
// Source: docs/design/cuda_tables.md, "The host makes room for the most that may be there".

#include "cuda/state/table_state.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace headway::embedding {

/// Newest copy of a TableState that the host has, and the number of keys that may have been inserted since. Not
/// thread-safe: CudaTable calls it under its mutex.
class StateMirror {
 public:
  /// @throws base::SystemError
  StateMirror();
  StateMirror(StateMirror const&) = delete;
  StateMirror& operator=(StateMirror const&) = delete;
  ~StateMirror();

  /// Enqueues a copy, after a call that may have changed the state and taken slots or rows for up to `num_keys` keys.
  void record(TableState const* state, std::size_t num_keys, cudaStream_t stream);
  /// The newest copy that has arrived. Never waits.
  TableState const& known();
  /// Keys that may have been inserted since the newest copy.
  [[nodiscard]] std::size_t num_unknown_keys() const { return num_unknown_keys_; }
  /// Waits for the oldest copy under way: cheaper than wait(), since the device keeps the work enqueued after it.
  /// @returns false if no copy is under way
  bool wait_for_one();
  /// An exact copy: waits for the stream.
  TableState const& wait(TableState const* state, cudaStream_t stream);
  /// Tells that a stripe was rebuilt without its erased slots (used = live). Drops the copies under way, which still
  /// count those slots; their keys stay unknown.
  void forget_erased(std::size_t stripe);

 private:
  static constexpr std::size_t kNumCopies = 8;
  /// One copy under way.
  struct Copy {
    TableState* state;     ///< Pinned host memory that the device writes.
    cudaEvent_t is_there;  ///< Recorded behind the copy.
    std::size_t num_keys;  ///< Keys of the calls between the previous copy and this one.
  };

  std::array<Copy, kNumCopies> copies_{};                       ///< Ring buffer.
  std::size_t first_ = 0, num_under_way_ = 0;                   ///< Oldest copy under way, and their number.
  std::size_t num_keys_after_last_ = 0, num_unknown_keys_ = 0;  ///< Keys after the last copy; keys after `known_`.
  TableState known_{};                                          ///< The newest copy that has arrived.
};

}  // namespace headway::embedding
