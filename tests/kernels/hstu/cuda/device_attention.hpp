// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_case.hpp"
#include "attention_check.hpp"
#include "device_memory.hpp"
#include "device_rows.hpp"
#include "headway/kernels/hstu_attention_cuda.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::kernels {

/// Functions that enqueue a pass and tell the size of its workspace.
struct AttentionKernels {
  void (*forward)(HstuForwardArgs const&, CudaStream, void*);
  std::size_t (*forward_workspace_bytes)(HstuForwardArgs const&);
  void (*backward)(HstuBackwardArgs const&, CudaStream, void*);
  std::size_t (*backward_workspace_bytes)(HstuBackwardArgs const&);
};

/// Input of a case in device memory.
class DeviceCase {
 public:
  DeviceCase(AttentionCase const& of, AttentionTensors const& tensors, ElementType type)
      : query_(of, type, tensors.query, of.dim),
        key_(of, type, tensors.key, of.dim),
        value_(of, type, tensors.value, of.value_columns()),
        query_offsets_(tensors.query_offsets),
        key_offsets_(tensors.key_offsets),
        query_times_(tensors.query_times),
        key_times_(tensors.key_times),
        num_contextual_(of.num_contextual),
        num_targets_(of.num_targets),
        position_weights_(tensors.position_weights),
        time_weights_(tensors.time_weights),
        time_bounds_(of.time_bounds) {
    args.options = of.options;
    args.type = type;
    args.num_heads = of.num_heads;
    args.dim = of.dim;
    args.value_dim = of.value_columns();
    args.query = query_.input();
    args.key = key_.input();
    args.value = value_.input();
    args.sequences = {.num_sequences = static_cast<std::int64_t>(of.num_queries.size()),
                      .query_offsets = query_offsets_.data(),
                      .key_offsets = key_offsets_.data(),
                      .num_queries = tensors.query_offsets.back(),
                      .num_keys = tensors.key_offsets.back(),
                      .max_queries = tensors.max_queries,
                      .max_keys = tensors.max_keys,
                      .num_contextual = num_contextual_.data_or_null(),
                      .num_targets = num_targets_.data_or_null()};
    args.bias = {.position_weights = position_weights_.data_or_null(),
                 .max_position_distance = of.has_position ? tensors.max_keys : 0,
                 .time_weights = time_weights_.data_or_null(),
                 .time_bounds = time_bounds_.data(),
                 .num_time_bounds = static_cast<std::int64_t>(of.time_bounds.size()),
                 .query_times = query_times_.data(),
                 .key_times = key_times_.data()};
  }

  HstuForwardArgs args;

 private:
  DeviceRows query_, key_, value_;
  DeviceMemory<std::int64_t> query_offsets_, key_offsets_, query_times_, key_times_;
  DeviceMemory<std::int32_t> num_contextual_, num_targets_;
  DeviceMemory<float> position_weights_, time_weights_, time_bounds_;
};

/// Workspace with arbitrary content: kernels must not depend on it.
inline DeviceMemory<std::uint8_t> used_workspace(std::size_t size_bytes) {
  return DeviceMemory<std::uint8_t>(std::vector<std::uint8_t>(size_bytes, 0xff));
}

/// Runs both passes of a case on the device, and checks that padding stays untouched. The backward pass runs first, as
/// it needs no output of the forward pass.
inline AttentionOutcome run_on_device(AttentionCase const& of, AttentionTensors const& tensors, ElementType type,
                                      AttentionKernels const& kernels) {
  auto const unwritten = [&of, type](std::vector<float> const& like, std::int32_t columns) {
    return DeviceRows(of, type, std::vector<float>(like.size(), NAN), columns);
  };
  DeviceCase const on_device(of, tensors, type);
  DeviceRows const grad_out(of, type, tensors.grad_out, of.value_columns());
  DeviceRows const out = unwritten(tensors.grad_out, of.value_columns());
  DeviceRows const query = unwritten(tensors.query, of.dim), key = unwritten(tensors.key, of.dim);
  DeviceRows const value = unwritten(tensors.value, of.value_columns());
  DeviceMemory<float> const position(std::vector<float>(tensors.position_weights.size(), NAN));
  DeviceMemory<float> const time(std::vector<float>(tensors.time_weights.size(), NAN));

  HstuBackwardArgs args{.forward = on_device.args,
                        .grad_out = grad_out.input(),
                        .grad_query = query.heads(),
                        .grad_key = key.heads(),
                        .grad_value = value.heads(),
                        .grad_position_weights = position.data_or_null(),
                        .grad_time_weights = time.data_or_null()};
  auto const backward_workspace = used_workspace(kernels.backward_workspace_bytes(args));
  kernels.backward(args, nullptr, backward_workspace.data());
  args.forward.out = out.heads();
  auto const forward_workspace = used_workspace(kernels.forward_workspace_bytes(args.forward));
  kernels.forward(args.forward, nullptr, forward_workspace.data());
  for (DeviceRows const* rows : {&out, &query, &key, &value}) EXPECT_TRUE(rows->is_padding_untouched());
  return {.out = out.values(),
          .grad_query = query.values(),
          .grad_key = key.values(),
          .grad_value = value.values(),
          .grad_position_weights = position.values(),
          .grad_time_weights = time.values()};
}

}  // namespace headway::kernels
