// SPDX-License-Identifier: Apache-2.0

// Jagged kernels for devices, run by the emulator thread by thread on the CPU.

#include "jagged_backend.hpp"

// The headers below are CUDA C++; the dialect of the emulator makes them compile.
#include "cuda_dialect.hpp"
#include "jagged/cuda/add_dense.cuh"
#include "jagged/cuda/move_rows.cuh"
#include "jagged/cuda/offsets.cuh"
#include "jagged/cuda/reduce_samples.cuh"
#include "jagged/cuda/run_lengths.cuh"
#include "jagged/cuda/sum_copies.cuh"
#include "jagged/expect_sizes.hpp"

namespace headway::kernels {

namespace {

constexpr unsigned kThreads = kWarp * kWarpsOfBlock;

/// Launches enough blocks of threads for `num_units`, if each block takes `units_of_block`.
void launch(std::int64_t num_units, std::int64_t units_of_block, std::function<void()> const& kernel) {
  if (num_units == 0) return;
  auto const num_blocks = static_cast<unsigned>((num_units + units_of_block - 1) / units_of_block);
  device_emulator::launch({.grid = {num_blocks}, .block = {kThreads}}, kernel);
}

class EmulatedBackend final : public InAlignedMemory<JaggedBackend> {
 public:
  void move_rows(JaggedMove const& move, std::span<MovedRows const> tensors) override {
    expect_sizes(move, tensors);
    for (; !tensors.empty(); tensors = tensors.subspan(std::min<std::size_t>(tensors.size(), kMaxMovedTensors))) {
      auto const first = tensors.first(std::min<std::size_t>(tensors.size(), kMaxMovedTensors));
      auto const args = move_rows_args(move, first, /*num_multiprocessors=*/1);
      launch(args.num_warps, kWarpsOfBlock, [&] { move_rows_kernel(args); });
    }
  }
  void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out) override {
    if (rows.num_samples == 0 || rows.num_columns == 0) return;
    std::vector<double> scratch(static_cast<std::size_t>(2 * num_reduced_chunks(rows) * rows.num_columns));
    with_element_vector(rows.type, rows.num_columns, {rows.values, out}, [&]<class Vector>() {
      auto const args = reduce_samples_args<Vector>(rows, reduction, out, scratch.data());
      launch(args.num_chunks * args.num_lanes, kThreads, [&] { sum_chunks_kernel<Vector>(args); });
      launch(rows.num_samples * args.num_lanes, kThreads, [&] { join_chunks_kernel<Vector>(args); });
    });
  }
  void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out) override {
    with_element_vector(rows.type, rows.num_columns, {rows.values, dense, out}, [&]<class Vector>() {
      auto const args = add_dense_args<Vector>(rows, dense, max_length, out);
      launch(args.num_warps, kWarpsOfBlock, [&] { add_dense_kernel<Vector>(args); });
    });
  }
  void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors) override {
    auto const args = sum_copies_args(items, tensors);
    launch(args.num_warps, kWarpsOfBlock, [&] { sum_copies_kernel(args); });
  }
  void find_run_lengths(RunLengths const& runs) override {
    if (runs.type == RunLengths::KeyType::kInt32) return find<std::int32_t>(runs);
    find<std::int64_t>(runs);
  }
  void find_offsets(MovedLengths const& lengths) override {
    if (lengths.type == MovedLengths::LengthType::kInt32) return scan_lengths<std::int32_t>(lengths);
    scan_lengths<std::int64_t>(lengths);
  }
  void count_rows(SegmentGroups const& groups) override {
    launch(groups.num_groups, kThreads, [&] { count_rows_kernel(groups); });
  }

 private:
  /// Takes the place of cub's inclusive scan.
  template <class Length>
  void scan_lengths(MovedLengths const& lengths) {
    std::int64_t offset = 0;
    for (std::int64_t i = 0; i < lengths.num_offsets(); ++i) {
      lengths.offsets[i] = offset += offset_step<Length>(lengths, i);
    }
  }

  template <class Key>
  void find(RunLengths const& runs) {
    *runs.num_runs = 0;
    std::int64_t begun = 0;
    for (std::int64_t i = 0; i < runs.size; ++i) {
      begun += begins_run(static_cast<Key const*>(runs.keys), i) ? 1 : 0;
      runs.run_of[i] = begun;
    }
    std::vector<std::int64_t> begins(static_cast<std::size_t>(runs.size) + 1);
    launch(runs.size, kThreads, [&] { begin_runs_kernel<Key>(runs, begins.data()); });
    launch(runs.size, kThreads, [&] { measure_runs_kernel<Key>(runs, begins.data()); });
  }
};

}  // namespace

std::vector<NamedBackend<JaggedBackend>> jagged_backends() {
  return {{"Emulated", [] { return std::unique_ptr<JaggedBackend>(new EmulatedBackend); }}};
}

}  // namespace headway::kernels
