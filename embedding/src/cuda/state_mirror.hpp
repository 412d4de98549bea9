#pragma once

#include "cuda/table_state.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace headway::embedding {

/// What the host knows of a TableState: copies that the device makes now and then, and how many keys it was asked to
/// insert since. What is counted is at most that of the copy and these keys together, whatever else has gone.
class StateMirror {
 public:
  /// @throws comm::SystemError
  StateMirror();
  StateMirror(StateMirror const&) = delete;
  StateMirror& operator=(StateMirror const&) = delete;
  ~StateMirror();

  /// After a call that may have changed the state, and taken slots or rows for up to `num_keys`.
  void record(TableState const* state, std::size_t num_keys, cudaStream_t stream);
  /// The newest copy that is there.
  TableState const& known();
  /// Keys that may have been inserted since.
  [[nodiscard]] std::size_t num_unknown_keys() const { return num_unknown_keys_; }
  /// Waits for the oldest copy under way, so that more is known while the device has still something to do.
  /// @returns whether there was one
  bool wait_for_one();
  /// A copy of now: waits for the stream.
  TableState const& wait(TableState const* state, cudaStream_t stream);
  /// What the copies under way say of a stripe is not true any more, as it has been made anew.
  void forget_erased(std::size_t stripe);

 private:
  static constexpr std::size_t kNumCopies = 8;
  struct Copy {
    TableState* state;  ///< In memory of the host that the device writes.
    cudaEvent_t is_there;
    std::size_t num_keys;  ///< Inserted from the copy before it to this one.
  };

  std::array<Copy, kNumCopies> copies_{};
  std::size_t first_ = 0, num_under_way_ = 0;  ///< A ring.
  std::size_t num_keys_after_last_ = 0, num_unknown_keys_ = 0;
  TableState known_{};
};

}  // namespace headway::embedding
