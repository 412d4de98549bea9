// SPDX-License-Identifier: Apache-2.0

// Run-length encoding on the CPU, in two passes over tasks of 32,768 entries.
//
// Idea: the first pass counts the runs that begin in each task. A prefix sum tells each task the index of its first
// run. In the second pass each task writes run_of for its entries, and values and lengths of the runs that begin in
// it.
//
// Example: keys 7 7 5 | 5 5 9, tasks of 3. Counts are 2 and 1, so key 9 begins run 2. The first task writes
//  lengths 2 and 3: its second run goes on into the next task. The second task writes length 1 for key 9 only.
//
// Invariants: a run is written by the task in which it begins. No two tasks write the same element.
// Complexity: two passes over the keys, and the ends of runs that cross a task.

#include "headway/kernels/run_lengths.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace headway::kernels {

namespace {

constexpr std::int64_t kEntriesOfTask = 1 << 15;  ///< Entries per task.

/// Does a run begin at entry i?
template <class Key>
bool begins_run(Key const* keys, std::int64_t i) {
  return i == 0 || keys[i] != keys[i - 1];
}

/// Second pass: writes the runs of entries [begin, end); `num_before` runs begin before them. The task in which a run
/// begins writes its length; it walks to the run's end, which may lie beyond `end`.
template <class Key>
void write_runs(RunLengths const& runs, std::int64_t begin, std::int64_t end, std::int64_t num_before) {
  auto const* const keys = static_cast<Key const*>(runs.keys);
  std::int64_t run = num_before - 1, run_begin = begin;
  auto const end_run = [&](std::int64_t run_end) {
    if (run >= num_before) runs.lengths[run] = run_end - run_begin;
  };
  for (std::int64_t i = begin; i < end; ++i) {
    if (begins_run(keys, i)) {
      end_run(i);
      static_cast<Key*>(runs.values)[++run] = keys[i];
      run_begin = i;
    }
    runs.run_of[i] = run;
  }
  std::int64_t run_end = end;
  while (run >= num_before && run_end < runs.size && !begins_run(keys, run_end)) ++run_end;
  end_run(run_end);
}

/// Runs both passes: the first counts the runs that begin in each task, and a prefix sum gives each task its first run.
/// Outputs have room for `size` runs; the unused rest becomes 0.
template <class Key>
void find(RunLengths const& runs, Executor const& executor) {
  auto const* const keys = static_cast<Key const*>(runs.keys);
  std::int64_t const num_tasks = (runs.size + kEntriesOfTask - 1) / kEntriesOfTask;
  auto const end_of = [&](std::int64_t task) { return std::min((task + 1) * kEntriesOfTask, runs.size); };
  std::vector<std::int64_t> num_before(static_cast<std::size_t>(num_tasks) + 1);
  executor(num_tasks, [&](std::int64_t task) {
    std::int64_t count = 0;
    for (std::int64_t i = task * kEntriesOfTask; i < end_of(task); ++i) count += begins_run(keys, i) ? 1 : 0;
    num_before[static_cast<std::size_t>(task) + 1] = count;
  });
  std::partial_sum(num_before.begin(), num_before.end(), num_before.begin());
  executor(num_tasks, [&](std::int64_t task) {
    write_runs<Key>(runs, task * kEntriesOfTask, end_of(task), num_before[static_cast<std::size_t>(task)]);
  });
  *runs.num_runs = num_before.back();
  std::fill(static_cast<Key*>(runs.values) + *runs.num_runs, static_cast<Key*>(runs.values) + runs.size, Key{0});
  std::fill(runs.lengths + *runs.num_runs, runs.lengths + runs.size, 0);
}

}  // namespace

void find_run_lengths(RunLengths const& runs, Executor const& executor) {
  if (runs.type == RunLengths::KeyType::kInt32) return find<std::int32_t>(runs, executor);
  find<std::int64_t>(runs, executor);
}

}  // namespace headway::kernels
