// Layer kernels on the CPU: on one thread, and with a thread per task.

#include "layer_place.hpp"
#include "run_with_threads.hpp"

namespace headway::kernels {

namespace {

class HostPlace final : public InHostMemory<LayerPlace> {
 public:
  explicit HostPlace(RunTasks run_tasks) : run_tasks_(std::move(run_tasks)) {}

  void gated_norm(GatedNorm const& args, void* out, void* statistics) override {
    kernels::gated_norm(args, out, statistics, run_tasks_);
  }
  void gated_norm_backward(GatedNormBackward const& args) override { kernels::gated_norm_backward(args, run_tasks_); }
  void silu_split(SiluSplit const& args) override { kernels::silu_split(args, run_tasks_); }
  void silu_split_backward(SiluSplitBackward const& args) override { kernels::silu_split_backward(args, run_tasks_); }

 private:
  RunTasks run_tasks_;
};

}  // namespace

std::vector<NamedPlace<LayerPlace>> layer_places() {
  return {{"InTurn", [] { return std::unique_ptr<LayerPlace>(new HostPlace(run_in_turn)); }},
          {"WithThreads", [] { return std::unique_ptr<LayerPlace>(new HostPlace(run_with_threads)); }}};
}

}  // namespace headway::kernels
