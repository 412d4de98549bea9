// Jagged kernels on the CPU: on one thread, and with a thread per task.

#include "jagged_place.hpp"
#include "run_with_threads.hpp"

namespace headway::kernels {

namespace {

class HostPlace final : public InHostMemory<JaggedPlace> {
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
  void find_offsets(MovedLengths const& lengths) override { kernels::find_offsets(lengths); }
  void count_rows(SegmentGroups const& groups) override { kernels::count_rows(groups); }

 private:
  RunTasks run_tasks_;
};

}  // namespace

std::vector<NamedPlace<JaggedPlace>> jagged_places() {
  return {{"InTurn", [] { return std::unique_ptr<JaggedPlace>(new HostPlace(run_in_turn)); }},
          {"WithThreads", [] { return std::unique_ptr<JaggedPlace>(new HostPlace(run_with_threads)); }}};
}

}  // namespace headway::kernels
