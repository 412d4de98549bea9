// SPDX-License-Identifier: Apache-2.0

// Jagged kernels on a CUDA device; tests are skipped if there is none.

#include "jagged_backend.hpp"
#include "managed_memory.hpp"

namespace headway::kernels {

namespace {

class DeviceBackend final : public InManagedMemory<JaggedBackend> {
 public:
  void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors) override {
    move_rows_async(move, tensors, nullptr);
    finish();
  }
  void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out) override {
    ManagedMemory const scratch(static_cast<std::size_t>(reduce_samples_scratch_bytes(rows)));
    reduce_samples_async(rows, reduction, out, scratch.data(), nullptr);
    finish();
  }
  void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out) override {
    add_dense_async(rows, dense, max_length, out, nullptr);
    finish();
  }
  void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors) override {
    sum_copies_async(items, tensors, nullptr);
    finish();
  }
  void find_run_lengths(RunLengths const& runs) override {
    std::int64_t const num_bytes = run_lengths_scratch_bytes(runs);
    ManagedMemory const scratch(static_cast<std::size_t>(num_bytes));
    find_run_lengths_async(runs, scratch.data(), num_bytes, nullptr);
    finish();
  }
  void find_offsets(MovedLengths const& lengths) override {
    std::int64_t const num_bytes = find_offsets_scratch_bytes(lengths);
    ManagedMemory const scratch(static_cast<std::size_t>(num_bytes));
    find_offsets_async(lengths, scratch.data(), num_bytes, nullptr);
    finish();
  }
  void count_rows(SegmentGroups const& groups) override {
    count_rows_async(groups, nullptr);
    finish();
  }
};

}  // namespace

std::vector<NamedBackend<JaggedBackend>> jagged_backends() {
  return {{"OnADevice", [] { return std::unique_ptr<JaggedBackend>(has_device() ? new DeviceBackend : nullptr); }}};
}

}  // namespace headway::kernels
