// SPDX-License-Identifier: Apache-2.0

// Jagged kernels on the CPU: on one thread, and with a thread per task.

#include "jagged_backend.hpp"
#include "run_with_threads.hpp"

namespace headway::kernels {

namespace {

class HostBackend final : public InHostMemory<JaggedBackend> {
 public:
  explicit HostBackend(Executor executor) : executor_(std::move(executor)) {}

  void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors) override {
    kernels::move_rows(move, tensors, executor_);
  }
  void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out) override {
    kernels::reduce_samples(rows, reduction, out, executor_);
  }
  void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out) override {
    kernels::add_dense(rows, dense, max_length, out, executor_);
  }
  void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors) override {
    kernels::sum_copies(items, tensors, executor_);
  }
  void find_run_lengths(RunLengths const& runs) override { kernels::find_run_lengths(runs, executor_); }
  void find_offsets(MovedLengths const& lengths) override { kernels::find_offsets(lengths); }
  void count_rows(SegmentGroups const& groups) override { kernels::count_rows(groups); }

 private:
  Executor executor_;
};

}  // namespace

std::vector<NamedBackend<JaggedBackend>> jagged_backends() {
  return {{"InTurn", [] { return std::unique_ptr<JaggedBackend>(new HostBackend(run_serially)); }},
          {"WithThreads", [] { return std::unique_ptr<JaggedBackend>(new HostBackend(run_with_threads)); }}};
}

}  // namespace headway::kernels
