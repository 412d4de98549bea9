// SPDX-License-Identifier: Apache-2.0

// Arguments of the HSTU kernels for a run by the device emulator, in host memory.

#pragma once

#include "attention_case.hpp"
#include "cuda/element.cuh"
#include "cuda/tensor_map.cuh"
#include "hstu/cuda/prepare.cuh"
#include "hstu/cuda/sm90/encode_map.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace headway::kernels {

/// One tensor (tokens, heads, columns) of a case on the host, 16-byte aligned, with NaN as padding behind the heads of
/// each token. `size` of its methods is the number of elements without padding.
template <class T>
class PaddedRows {
 public:
  PaddedRows(AttentionCase const& of, std::vector<float> const& values) : PaddedRows(of, values, of.dim) {}
  /// @param columns columns of a head
  PaddedRows(AttentionCase const& of, std::vector<float> const& values, std::int32_t columns)
      : row_(of.num_heads * columns), stride_(row_ + of.padding), dim_(columns) {
    std::size_t const tokens = values.size() / static_cast<std::size_t>(row_);
    storage_.assign(tokens * static_cast<std::size_t>(stride_) + 8, from_float<T>(NAN));
    for (std::size_t i = 0; i < values.size(); ++i) at(i) = from_float<T>(values[i]);
  }

  [[nodiscard]] JaggedHeads<void*> heads() { return {first(), stride_, dim_}; }
  [[nodiscard]] JaggedHeads<void const*> heads() const {
    return {const_cast<PaddedRows*>(this)->first(), stride_, dim_};
  }
  [[nodiscard]] std::vector<float> values(std::size_t size) const {
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = to_float(const_cast<PaddedRows*>(this)->at(i));
    return values;
  }
  /// Is the padding still NaN?
  [[nodiscard]] bool is_padding_untouched(std::size_t size) const {
    auto const* data = const_cast<PaddedRows*>(this)->first();
    std::size_t const tokens = size / static_cast<std::size_t>(row_);
    for (std::size_t i = 0; i < tokens; ++i) {
      for (std::int64_t p = row_; p < stride_; ++p) {
        if (!std::isnan(to_float(data[i * static_cast<std::size_t>(stride_) + static_cast<std::size_t>(p)])))
          return false;
      }
    }
    return true;
  }

 private:
  [[nodiscard]] T* first() {
    auto const address = reinterpret_cast<std::uintptr_t>(storage_.data());
    return storage_.data() + (16 - address % 16) % 16 / sizeof(T);
  }
  [[nodiscard]] T& at(std::size_t i) {
    auto const row = static_cast<std::size_t>(row_);
    return first()[i / row * static_cast<std::size_t>(stride_) + i % row];
  }

  std::int64_t row_, stride_, dim_;  ///< Elements of a token without and with padding; columns of a head.
  std::vector<T> storage_;
};

/// TMA descriptor of the emulator.
inline TensorMap emulated_map(HeadTiles const& tiles) {
  return {static_cast<std::byte const*>(tiles.data), tiles.size, tiles.stride_bytes, tiles.box};
}

/// Runs the preparation kernel, which precedes the kernels of a call: it checks the arguments and clears memory.
inline void emulate_preparation(HstuPreparation const& preparation) {
  unsigned const num_blocks = static_cast<unsigned>(preparation.num_blocks(1));
  device_emulator::launch({.grid = {num_blocks}, .block = {HstuPreparation::kThreads}},
                          [&] { prepare_hstu_kernel<HstuPreparation::kThreads>(preparation); });
}

template <class T>
[[nodiscard]] constexpr ElementType element_type_of() {
  if constexpr (std::is_same_v<T, float>) return ElementType::kFloat32;
  return std::is_same_v<T, Bfloat16> ? ElementType::kBfloat16 : ElementType::kFloat16;
}

/// Forward arguments for elements of type T, without the pointers to rows.
template <class T>
HstuForwardArgs forward_args(AttentionCase const& of, AttentionTensors const& tensors) {
  HstuForwardArgs args;
  args.type = element_type_of<T>();
  args.options = of.options;
  args.sequences = {.num_sequences = static_cast<std::int64_t>(of.num_queries.size()),
                    .query_offsets = tensors.query_offsets.data(),
                    .key_offsets = tensors.key_offsets.data(),
                    .num_queries = tensors.num_query_rows(of),
                    .num_keys = tensors.num_key_rows(of),
                    .max_queries = tensors.max_queries,
                    .max_keys = tensors.max_keys,
                    .num_contextual = of.num_contextual.empty() ? nullptr : of.num_contextual.data(),
                    .num_targets = of.num_targets.empty() ? nullptr : of.num_targets.data()};
  args.num_heads = of.num_heads;
  args.dim = of.dim;
  args.value_dim = of.value_columns();
  if (of.has_position) {
    args.bias.position_weights = tensors.position_weights.data();
    args.bias.max_position_distance = tensors.max_keys;
  }
  if (!of.time_bounds.empty()) {
    args.bias.time_weights = tensors.time_weights.data();
    args.bias.time_bounds = of.time_bounds.data();
    args.bias.num_time_bounds = static_cast<std::int64_t>(of.time_bounds.size());
    args.bias.query_times = tensors.query_times.data();
    args.bias.key_times = tensors.key_times.data();
  }
  return args;
}

}  // namespace headway::kernels
