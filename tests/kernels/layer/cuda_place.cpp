// Layer kernels on a CUDA device; tests are skipped if there is none.

#include "cuda/managed_memory.hpp"
#include "layer_place.hpp"

namespace headway::kernels {

namespace {

class DevicePlace final : public InManagedMemory<LayerPlace> {
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

std::vector<NamedPlace<LayerPlace>> layer_places() {
  return {{"OnADevice", [] { return std::unique_ptr<LayerPlace>(has_device() ? new DevicePlace : nullptr); }}};
}

}  // namespace headway::kernels
