// SPDX-License-Identifier: Apache-2.0

// Layer kernels on a CUDA device; tests are skipped if there is none.

#include "layer_backend.hpp"
#include "managed_memory.hpp"

namespace headway::kernels {

namespace {

class DeviceBackend final : public InManagedMemory<LayerBackend> {
 public:
  void gated_norm(GatedNorm const& args, void* out, void* statistics) override {
    gated_norm_async(args, out, statistics, nullptr);
    finish();
  }
  void gated_norm_backward(GatedNormBackward const& args) override {
    ManagedMemory const scratch(static_cast<std::size_t>(gated_norm_backward_scratch_bytes(args)));
    gated_norm_backward_async(args, scratch.data(), nullptr);
    finish();
  }
  void silu_split(SiluSplit const& args) override {
    silu_split_async(args, nullptr);
    finish();
  }
  void silu_split_backward(SiluSplitBackward const& args) override {
    ManagedMemory const scratch(static_cast<std::size_t>(silu_split_backward_scratch_bytes(args)));
    silu_split_backward_async(args, scratch.data(), nullptr);
    finish();
  }
};

}  // namespace

std::vector<NamedBackend<LayerBackend>> layer_backends() {
  return {{"OnADevice", [] { return std::unique_ptr<LayerBackend>(has_device() ? new DeviceBackend : nullptr); }}};
}

}  // namespace headway::kernels
