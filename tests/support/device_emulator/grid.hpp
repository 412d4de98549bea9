// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fiber.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headway::device_emulator {

/// Index of a block or thread, such as CUDA's threadIdx.
struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

/// Size of a grid or block.
struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
  [[nodiscard]] unsigned volume() const { return x * y * z; }
};

/// Time at which asynchronous operations (copies, products of warpgroups) complete. A kernel must be right with each.
/// kEarly: at once. Warps take turns step by step.
/// kLate: when nothing else can run. Each warp runs as far as it can, the last one first. Deferred operations complete
/// in a random order that is the same in each run.
/// kLastLag: at once. A warp runs only while no warp before it can, so the last warps lag behind.
enum class AsyncTiming : std::uint8_t { kEarly, kLate, kLastLag };

/// Grid, memory and scheduling of a kernel: the arguments of CUDA's <<<>>>, and two of the emulator's own.
struct LaunchOptions {
  Extent3 grid{}, block{};
  std::size_t shared_bytes = 0;  ///< Dynamic shared memory.
  AsyncTiming timing = AsyncTiming::kEarly;
  /// Number of blocks that run interleaved. Above 1 only for kernels whose shared memory is all dynamic.
  unsigned concurrent_blocks = 1;
};

/// A kernel did something that CUDA does not define, or its threads wait for each other for ever (deadlock).
struct KernelError : std::logic_error {
  using std::logic_error::logic_error;
};

class Block;

/// Operations that a thread has started, in groups that it waits for in order (cp.async, bulk stores, wgmma).
struct OperationQueue {
  std::vector<std::function<void()>> open;  ///< Started since the last commit().
  std::deque<std::vector<std::function<void()>>> groups;

  void commit();
  /// Completes the oldest groups until `num_left` are left.
  void finish(std::size_t num_left);
};

/// A thread of a kernel. It runs as a fiber.
struct Thread {
  Fiber fiber;
  Block* block = nullptr;
  Index3 index;
  unsigned linear_index = 0;          ///< Linear index in the block.
  char const* waits_for = nullptr;    ///< Name of the awaited event, for error texts.
  bool (*is_ready)(void*) = nullptr;  ///< Condition of the wait, of `ready_argument`; null: does not wait.
  void* ready_argument = nullptr;
  OperationQueue copies, bulk_stores;  ///< cp.async, and bulk additions to global memory.

  [[nodiscard]] unsigned lane() const { return linear_index % 32; }
};

/// Joint operation of some lanes of a warp. Each lane passes its argument; the last one to arrive acts for all.
struct WarpCollective {
  std::uint32_t arrived = 0;     ///< Mask of the lanes that have come.
  std::uint64_t generation = 0;  ///< Completed operations of these lanes.
  char const* name = nullptr;
  void* arguments[32] = {};
};

/// A barrier of the block (__syncthreads, bar.sync, bar.arrive).
struct NamedBarrier {
  unsigned arrived = 0, expected = 0;  ///< Threads.
  std::uint64_t generation = 0;        ///< Completed phases.
};

/// A block of a kernel: its threads, shared memory, barriers and deferred operations. All of it runs on one thread of
/// the host, so nothing needs a lock.
class Block {
 public:
  Block(LaunchOptions const& options, std::function<void()> const& kernel);
  /// Prepares all threads of block `index`. `stacks` holds the memory of their fibers.
  void start(Index3 index, std::span<std::byte> stacks);
  /// Runs each thread that can run until it waits. @returns whether any could.
  bool advance();
  /// Completes one deferred operation. @returns whether there was one.
  bool finish_one_operation();
  [[nodiscard]] bool is_done() const { return num_running_ == 0; }
  [[nodiscard]] std::string describe_waits() const;

  /// Waits until all lanes of `mask` have come. The last one calls `act` with the arguments of all lanes.
  void meet(std::uint32_t mask, char const* name, void* argument, void (*act)(void* const* arguments));
  /// Waits at a barrier until `num_threads` threads have arrived.
  void sync(unsigned barrier, unsigned num_threads, char const* name);
  /// Arrives at a barrier without waiting.
  void arrive(unsigned barrier, unsigned num_threads);
  /// Runs `operation` now or defers it, depending on the timing.
  void do_sometime(std::function<void()> operation);

  [[nodiscard]] Index3 index() const { return index_; }
  [[nodiscard]] LaunchOptions const& options() const { return options_; }
  [[nodiscard]] bool is_late() const { return options_.timing == AsyncTiming::kLate; }
  /// Products (wgmma) that the threads of a warp have started together.
  [[nodiscard]] OperationQueue& products_of(unsigned warp) { return products_[warp]; }
  /// Shared memory of the block, 1024-byte aligned.
  [[nodiscard]] std::byte* shared() { return shared_; }

 private:
  bool advance_warp(unsigned warp);
  bool run(Thread& thread);
  NamedBarrier& join(unsigned barrier, unsigned num_threads);

  LaunchOptions const& options_;
  std::function<void()> const& kernel_;
  Index3 index_;
  std::vector<std::byte> shared_storage_;
  std::byte* shared_ = nullptr;
  std::vector<Thread> threads_;
  unsigned num_running_ = 0;
  std::map<std::pair<unsigned, std::uint32_t>, WarpCollective> collectives_;  ///< Keyed by warp and mask.
  NamedBarrier barriers_[16];
  std::vector<OperationQueue> products_;        ///< One queue per warp.
  std::vector<std::function<void()>> put_off_;  ///< Deferred operations.
  std::uint32_t choice_ = 1;                    ///< State of the generator that picks deferred operations.
};

/// The thread whose code runs. Call it only inside a kernel.
[[nodiscard]] Thread& this_thread();

/// Lets other threads run until `is_ready()`. The scheduler evaluates it.
template <class Ready>
void wait_until(char const* name, Ready is_ready) {
  if (is_ready()) return;
  Thread& thread = this_thread();
  thread.waits_for = name;
  thread.ready_argument = &is_ready;
  thread.is_ready = [](void* argument) { return (*static_cast<Ready*>(argument))(); };
  thread.fiber.stop();
}

/// Runs `kernel()` for each thread of the grid.
/// @throws KernelError if a kernel does something that CUDA does not define, or if no thread can run; says where each
/// waits.
void launch(LaunchOptions const& options, std::function<void()> const& kernel);

}  // namespace headway::device_emulator
