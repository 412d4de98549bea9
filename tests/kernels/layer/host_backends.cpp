// SPDX-License-Identifier: Apache-2.0

// Layer kernels on the CPU: on one thread, and with a thread per task.

#include "layer_backend.hpp"
#include "run_with_threads.hpp"

namespace headway::kernels {

namespace {

class HostBackend final : public InHostMemory<LayerBackend> {
 public:
  explicit HostBackend(Executor executor) : executor_(std::move(executor)) {}

  void gated_norm(GatedNorm const& args, void* out, void* statistics) override {
    kernels::gated_norm(args, out, statistics, executor_);
  }
  void gated_norm_backward(GatedNormBackward const& args) override { kernels::gated_norm_backward(args, executor_); }
  void silu_split(SiluSplit const& args) override { kernels::silu_split(args, executor_); }
  void silu_split_backward(SiluSplitBackward const& args) override { kernels::silu_split_backward(args, executor_); }

 private:
  Executor executor_;
};

}  // namespace

std::vector<NamedBackend<LayerBackend>> layer_backends() {
  return {{"InTurn", [] { return std::unique_ptr<LayerBackend>(new HostBackend(run_serially)); }},
          {"WithThreads", [] { return std::unique_ptr<LayerBackend>(new HostBackend(run_with_threads)); }}};
}

}  // namespace headway::kernels
