// SPDX-License-Identifier: Apache-2.0

// Layer kernels for devices, run by the emulator thread by thread on the CPU.

#include "layer_backend.hpp"

// The headers below are CUDA C++; the dialect of the emulator makes them compile.
#include "cuda_dialect.hpp"
#include "layer/cuda/column_sums.cuh"
#include "layer/cuda/gated_norm.cuh"
#include "layer/cuda/gated_norm_backward.cuh"
#include "layer/cuda/silu_split.cuh"
#include "layer/expect_arguments.hpp"

namespace headway::kernels {

namespace {

constexpr std::int64_t kMaxBlocks = 3;  ///< Few blocks, so that each has several rows.

template <class RealType, class Out>
void add_column_sums(ColumnSums<RealType, Out> const& args) {
  auto const num_blocks = static_cast<unsigned>((args.num_columns + kWarpThreads - 1) / kWarpThreads);
  device_emulator::launch({.grid = {num_blocks, 2}, .block = {kWarpThreads * ColumnSums<RealType, Out>::kGroups}},
                          [&] { add_column_sums_kernel(args); });
}

class EmulatedBackend final : public InAlignedMemory<LayerBackend> {
 public:
  void gated_norm(GatedNorm const& args, void* out, void* statistics) override {
    expect_arguments(args);
    with_norm_shape(args, out, [&]<class Shape>() {
      auto const params = gated_norm_params<Shape>(args, out, statistics);
      auto const num_blocks = static_cast<unsigned>((args.num_rows + Shape::kRows - 1) / Shape::kRows);
      device_emulator::launch({.grid = {num_blocks}, .block = {kNormThreads}},
                              [&] { gated_norm_kernel<Shape>(params); });
    });
  }
  void gated_norm_backward(GatedNormBackward const& args) override {
    expect_arguments(args.forward);
    with_norm_shape(args, [&]<class Shape>() {
      using Number = typename Shape::Number;
      std::int64_t const num_columns = args.forward.num_columns;
      std::vector<Number> partials(static_cast<std::size_t>(kMaxBlocks * 2 * num_columns));
      auto const params = gated_norm_backward_params<Shape>(args, partials.data());
      device_emulator::launch({.grid = {kMaxBlocks}, .block = {kNormThreads}},
                              [&] { gated_norm_backward_kernel<Shape>(params); });
      auto const sum = [&]<class Out>() {
        add_column_sums<Number, Out>(
            {.partials = partials.data(),
             .num_partials = kMaxBlocks,
             .partial_stride = 2 * num_columns,
             .num_columns = num_columns,
             .outs = {static_cast<Out*>(args.grad_weight), static_cast<Out*>(args.grad_bias)}});
      };
      if (args.forward.weight_type != args.forward.type) return sum.template operator()<Number>();
      sum.template operator()<typename Shape::Element>();
    });
  }
  void silu_split(SiluSplit const& args) override {
    expect_parts(args.parts);
    with_pack(args.type, is_in_packs(args.type, args.x, args.parts), [&]<class Element, int kSize>() {
      SplitGrid const grid(args.num_rows, columns_of(args.parts), kSize, kMaxBlocks);
      auto const params = silu_split_params<Element>(args);
      launch(grid, [&] { silu_split_kernel<Element, kSize>(params); });
    });
  }
  void silu_split_backward(SiluSplitBackward const& args) override {
    expect_parts(args.grad_parts);
    std::int64_t const num_columns = columns_of(args.grad_parts);
    with_pack(args.type, is_in_packs(args.type, args.x, args.grad_parts), [&]<class Element, int kSize>() {
      SplitGrid const grid(args.num_rows, num_columns, kSize, kMaxBlocks);
      std::vector<Real<Element>> partials(static_cast<std::size_t>(grid.rows * num_columns));
      auto const params = silu_split_backward_params<Element>(args, partials.data());
      launch(grid, [&] { silu_split_backward_kernel<Element, kSize>(params); });
      add_column_sums<Real<Element>, Real<Element>>({.partials = partials.data(),
                                                     .num_partials = grid.rows,
                                                     .partial_stride = num_columns,
                                                     .num_columns = num_columns,
                                                     .outs = {static_cast<Real<Element>*>(args.column_sums), nullptr}});
    });
  }

 private:
  static void launch(SplitGrid const& grid, std::function<void()> const& kernel) {
    device_emulator::launch({.grid = {grid.columns, grid.rows}, .block = {kSplitWarps * kWarpThreads}}, kernel);
  }
};

}  // namespace

std::vector<NamedBackend<LayerBackend>> layer_backends() {
  return {{"Emulated", [] { return std::unique_ptr<LayerBackend>(new EmulatedBackend); }}};
}

}  // namespace headway::kernels
