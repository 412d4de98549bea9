// The CPU, in turn and with threads.

#include "jagged_place.hpp"

#include <exception>
#include <mutex>
#include <thread>

namespace headway::kernels {

namespace {

/// A thread for each task.
void run_with_threads(std::int64_t count, Task const& task) {
  std::exception_ptr error;
  std::mutex mutex;
  std::vector<std::jthread> threads;
  for (std::int64_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        task(i);
      } catch (...) {
        std::lock_guard const lock(mutex);
        error = std::current_exception();
      }
    });
  }
  threads.clear();
  if (error) std::rethrow_exception(error);
}

class HostPlace final : public JaggedPlace {
 public:
  explicit HostPlace(RunTasks run_tasks) : run_tasks_(std::move(run_tasks)) {}

  void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors) override {
    kernels::move_rows(move, tensors, run_tasks_);
  }
  void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out) override {
    kernels::reduce_samples(rows, reduction, out, run_tasks_);
  }
  void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out) override {
    kernels::add_dense(rows, dense, max_length, out, run_tasks_);
  }
  void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors) override {
    kernels::sum_copies(items, tensors, run_tasks_);
  }
  void find_run_lengths(RunLengths const& runs) override { kernels::find_run_lengths(runs, run_tasks_); }

 private:
  // Exactly as much as was asked for, so that a sanitizer sees what goes beyond.
  void* allocate(std::size_t num_bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(num_bytes));
    return memory_.back().get();
  }

  RunTasks run_tasks_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace

std::vector<NamedPlace> jagged_places() {
  return {{"InTurn", [] { return std::unique_ptr<JaggedPlace>(new HostPlace(run_in_turn)); }},
          {"WithThreads", [] { return std::unique_ptr<JaggedPlace>(new HostPlace(run_with_threads)); }}};
}

}  // namespace headway::kernels
