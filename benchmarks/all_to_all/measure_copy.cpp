// SPDX-License-Identifier: Apache-2.0

// Measures a plain copy of the same bytes by memcpy(), as the floor under any exchange in shared memory. All ranks copy
// at the same time, each its own memory. A point has the times of rank 0.

#include "call_loop.hpp"
#include "measurements.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace headway::benchmarks {

namespace {

std::vector<double> time_copies(CallBuffers const& buffers, std::size_t copies) {
  auto const source = buffers.sends().all();
  auto const target = buffers.receives().all();
  std::size_t const bytes = std::min(source.size(), target.size());
  std::vector<double> durations_s;
  durations_s.reserve(copies);
  auto last = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < copies; ++i) {
    std::memcpy(target.data(), source.data(), bytes);
    // Tells the compiler that the target is read before the next copy.
    asm volatile("" : : "r"(target.data()) : "memory");
    auto const now = std::chrono::steady_clock::now();
    durations_s.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
  }
  return durations_s;
}

}  // namespace

void measure_copy(RankContext const& context) {
  for (std::size_t const bytes : context.settings.sizes) {
    std::size_t const copies =
        context.settings.repetitions != 0 ? context.settings.repetitions : default_repetitions(bytes);
    CallBuffers buffers(Split::kEven, bytes, context.identity.rank, context.identity.ranks);
    buffers.fill(0);
    (void)time_copies(buffers, warm_up_calls(copies));
    context.barrier.wait();
    auto const summary = summarize(time_copies(buffers, copies));
    context.barrier.wait();
    if (!context.is_root()) continue;
    JsonObject point;
    point.add("name", "copy").add("params", context.params(bytes, 0)).add("system", "memcpy");
    add_summary(point, summary, bytes);
    print_point(point);
  }
}

}  // namespace headway::benchmarks
