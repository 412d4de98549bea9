// A CUDA device; tests are skipped where there is none.

#include "jagged_place.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace headway::kernels {

namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

class CudaMemory {
 public:
  explicit CudaMemory(std::size_t num_bytes) { check(cudaMallocManaged(&data_, std::max<std::size_t>(num_bytes, 1))); }
  CudaMemory(CudaMemory const&) = delete;
  CudaMemory& operator=(CudaMemory const&) = delete;
  ~CudaMemory() { static_cast<void>(cudaFree(data_)); }
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class DevicePlace final : public JaggedPlace {
 public:
  void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors) override {
    move_rows_async(move, tensors, nullptr);
    check(cudaDeviceSynchronize());
  }
  void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out) override {
    CudaMemory const scratch(static_cast<std::size_t>(reduce_samples_scratch_bytes(rows)));
    reduce_samples_async(rows, reduction, out, scratch.data(), nullptr);
    check(cudaDeviceSynchronize());
  }
  void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out) override {
    add_dense_async(rows, dense, max_length, out, nullptr);
    check(cudaDeviceSynchronize());
  }
  void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors) override {
    sum_copies_async(items, tensors, nullptr);
    check(cudaDeviceSynchronize());
  }
  void find_run_lengths(RunLengths const& runs) override {
    std::int64_t const num_bytes = run_lengths_scratch_bytes(runs);
    CudaMemory const scratch(static_cast<std::size_t>(num_bytes));
    find_run_lengths_async(runs, scratch.data(), num_bytes, nullptr);
    check(cudaDeviceSynchronize());
  }

 private:
  void* allocate(std::size_t num_bytes) override {
    memory_.push_back(std::make_unique<CudaMemory>(num_bytes));
    return memory_.back()->data();
  }

  std::vector<std::unique_ptr<CudaMemory>> memory_;
};

}  // namespace

std::vector<NamedPlace> jagged_places() {
  return {{"OnADevice", [] {
             int num_devices = 0;
             bool const is_there = cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
             return std::unique_ptr<JaggedPlace>(is_there ? new DevicePlace : nullptr);
           }}};
}

}  // namespace headway::kernels
