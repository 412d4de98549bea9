// SPDX-License-Identifier: Apache-2.0

// Runs a kernel on the host: each thread of a block is a fiber, so no two threads ever run at the same time.
//
// A fiber runs until it waits: at a barrier, for a warp operation whose other lanes have not come, or for a copy. Then
// another one runs. If all wait, the block has a deadlock, and the error lists who waits for what.
//
// With AsyncTiming::kLate, asynchronous operations are put off until nothing else can run. So a missing wait reads old
// bytes here, where a real device would usually be fast enough to hide it. Shared memory is NaN at first, so that
// reading what nobody wrote shows too.

#include "grid.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headway::device_emulator {
namespace {

/// Stack of a thread. Pages of it that are not touched take no memory.
constexpr std::size_t kStackBytes = 256 << 10;
/// TMA and wgmma with swizzle want tiles at multiples of 1,024 bytes.
constexpr std::size_t kSharedAlignment = 1024;

thread_local Thread* running = nullptr;

Index3 index_at(unsigned linear_index, Extent3 extent) {
  return {linear_index % extent.x, linear_index / extent.x % extent.y, linear_index / extent.x / extent.y};
}

}  // namespace

Thread& this_thread() { return *running; }

void OperationQueue::commit() { groups.push_back(std::exchange(open, {})); }

void OperationQueue::finish(std::size_t num_left) {
  while (groups.size() > num_left) {
    for (auto const& operation : groups.front()) operation();
    groups.pop_front();
  }
}

Block::Block(LaunchOptions const& options, std::function<void()> const& kernel)
    : options_(options),
      kernel_(kernel),
      shared_storage_(options.shared_bytes + kSharedAlignment),
      threads_(options.block.volume()) {
  auto const address = reinterpret_cast<std::uintptr_t>(shared_storage_.data());
  shared_ = shared_storage_.data() + (kSharedAlignment - address % kSharedAlignment) % kSharedAlignment;
}

void Block::start(Index3 index, std::span<std::byte> stacks) {
  index_ = index;
  num_running_ = options_.block.volume();
  collectives_.clear();
  products_.assign((num_running_ + 31) / 32, {});
  std::fill(std::begin(barriers_), std::end(barriers_), NamedBarrier{});
  std::memset(shared_storage_.data(), 0xff, shared_storage_.size());  // NaN in each format.
  for (unsigned i = 0; i < threads_.size(); ++i) {
    Thread& thread = threads_[i];
    thread.block = this;
    thread.linear_index = i;
    thread.index = index_at(i, options_.block);
    thread.is_ready = nullptr;
    thread.copies = thread.bulk_stores = {};
    thread.fiber.prepare(stacks.subspan(i * kStackBytes, kStackBytes), [this] { kernel_(); });
  }
}

// One round over the warps; the timing decides about their order. kEarly: each takes one step. kLate: each goes as
// far as it can, the last warp first. kLastLag: the first warp that can run goes as far as it can, so that a later
// one is always as far behind as the kernel allows.
bool Block::advance() {
  unsigned const num_warps = (options_.block.volume() + 31) / 32;
  bool has_run = false;
  for (unsigned i = 0; i < num_warps; ++i) {
    unsigned const warp = is_late() ? num_warps - 1 - i : i;
    while (advance_warp(warp)) {
      has_run = true;
      if (options_.timing == AsyncTiming::kEarly) break;
    }
    if (has_run && options_.timing == AsyncTiming::kLastLag) break;
  }
  return has_run;
}

bool Block::advance_warp(unsigned warp) {
  auto const end = std::min<std::size_t>(threads_.size(), 32 * (warp + 1));
  bool has_run = false;
  for (std::size_t i = 32 * warp; i < end; ++i) {
    if (!threads_[i].fiber.is_done() && run(threads_[i])) has_run = true;
  }
  return has_run;
}

// A thread that waits is looked at without a switch of stacks: the condition of its wait runs on the scheduler's stack.
bool Block::run(Thread& thread) {
  if (thread.is_ready != nullptr && !thread.is_ready(thread.ready_argument)) return false;
  thread.is_ready = nullptr;
  running = &thread;
  thread.fiber.resume();
  if (!thread.fiber.is_done()) return true;
  --num_running_;
  if (!thread.bulk_stores.open.empty() || !thread.bulk_stores.groups.empty()) {
    throw KernelError("a thread ended before its bulk stores had read shared memory");
  }
  return true;
}

bool Block::finish_one_operation() {
  if (put_off_.empty()) return false;
  // Picks any of them: operations of different barriers may complete in any order.
  choice_ = choice_ * 1664525 + 1013904223;
  std::swap(put_off_[(choice_ >> 16) % put_off_.size()], put_off_.back());
  auto const operation = std::move(put_off_.back());
  put_off_.pop_back();
  operation();
  return true;
}

std::string Block::describe_waits() const {
  std::map<std::string, std::vector<unsigned>> waiting;
  for (Thread const& thread : threads_) {
    if (!thread.fiber.is_done()) waiting[thread.waits_for].push_back(thread.linear_index);
  }
  std::string text = "block " + std::to_string(index_.x) + "," + std::to_string(index_.y) + ":";
  for (auto const& [name, numbers] : waiting) {
    text += " " + std::to_string(numbers.size()) + " threads, " + std::to_string(numbers.front()) + " to " +
            std::to_string(numbers.back()) + ", in " + name + ";";
  }
  return text;
}

// Lanes are found by (warp, mask). The generation tells an operation from the next one of the same lanes, which a
// fast lane may enter before the slow ones have left this one.
void Block::meet(std::uint32_t mask, char const* name, void* argument, void (*act)(void* const* arguments)) {
  Thread& thread = this_thread();
  std::uint32_t const bit = 1u << thread.lane();
  if ((mask & bit) == 0) throw KernelError(std::string(name) + ": a lane is not in its own mask");
  WarpCollective& collective = collectives_[{thread.linear_index / 32, mask}];
  if (collective.arrived == 0) collective.name = name;
  if (std::strcmp(collective.name, name) != 0) {
    throw KernelError(std::string("lanes of a warp meet in ") + name + " and " + collective.name);
  }
  collective.arguments[thread.lane()] = argument;
  collective.arrived |= bit;
  if (collective.arrived == mask) {
    if (act != nullptr) act(collective.arguments);
    collective.arrived = 0;
    ++collective.generation;
    return;
  }
  wait_until(name, [&collective, generation = collective.generation] { return collective.generation != generation; });
}

// Like bar.sync and bar.arrive: a barrier is free again as soon as the expected number has come.
NamedBarrier& Block::join(unsigned barrier, unsigned num_threads) {
  NamedBarrier& joined = barriers_[barrier];
  if (joined.arrived == 0) joined.expected = num_threads;
  if (joined.expected != num_threads || num_threads % 32 != 0) {
    throw KernelError("barrier " + std::to_string(barrier) + " is joined for " + std::to_string(joined.expected) +
                      " and for " + std::to_string(num_threads) + " threads");
  }
  if (++joined.arrived == joined.expected) {
    joined.arrived = 0;
    ++joined.generation;
  }
  return joined;
}

void Block::sync(unsigned barrier, unsigned num_threads, char const* name) {
  std::uint64_t const generation = barriers_[barrier].generation;
  NamedBarrier& joined = join(barrier, num_threads);
  wait_until(name, [&joined, generation] { return joined.generation != generation; });
}

void Block::arrive(unsigned barrier, unsigned num_threads) { join(barrier, num_threads); }

void Block::do_sometime(std::function<void()> operation) {
  if (is_late()) {
    put_off_.push_back(std::move(operation));
  } else {
    operation();
  }
}

// Blocks beyond `concurrent_blocks` start when one that runs has ended, as on a device whose multiprocessors are
// full. If a round ran nothing, one deferred operation completes; if there is none, no thread will ever go on.
void launch(LaunchOptions const& options, std::function<void()> const& kernel) {
  unsigned const num_blocks = options.grid.volume();
  unsigned const num_together = std::min(std::max(options.concurrent_blocks, 1u), num_blocks);
  std::size_t const stack_bytes = options.block.volume() * kStackBytes;
  std::unique_ptr<std::byte[]> const stacks(new std::byte[num_together * stack_bytes]);
  std::deque<Block> blocks;
  unsigned next = 0;
  auto const start_next = [&](std::size_t slot) {
    blocks[slot].start(index_at(next++, options.grid), {stacks.get() + slot * stack_bytes, stack_bytes});
  };
  for (unsigned i = 0; i < num_together; ++i) {
    blocks.emplace_back(options, kernel);
    start_next(i);
  }
  for (bool has_work = num_blocks > 0; has_work;) {
    bool has_run = false;
    has_work = false;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      has_run |= blocks[i].advance();
      if (blocks[i].is_done() && next < num_blocks) start_next(i);
      has_work |= !blocks[i].is_done();
    }
    if (has_run || !has_work) continue;
    bool has_finished = false;
    for (Block& block : blocks) has_finished = has_finished || block.finish_one_operation();
    if (has_finished) continue;
    std::string text = "no thread can go on;";
    for (Block const& block : blocks) text += " " + block.describe_waits();
    throw KernelError(text);
  }
}

}  // namespace headway::device_emulator
