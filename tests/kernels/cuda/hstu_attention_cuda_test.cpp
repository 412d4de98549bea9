// HSTU attention on a GPU, against the oracle; what the emulator runs is run here by the hardware.

#include "headway/kernels/hstu_attention_cuda.hpp"

#include "attention_cases.hpp"
#include "device_memory.hpp"
#include "element_emulation.hpp"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace headway::kernels {
namespace {

/// 16-bit numbers of a case, with padding behind the heads of a token.
class DeviceRows {
 public:
  DeviceRows(AttentionCase const& of, ElementType type, std::vector<float> const& values)
      : is_bfloat16_(type == ElementType::kBfloat16),
        row_(static_cast<std::size_t>(of.num_heads * of.dim)),
        stride_(row_ + static_cast<std::size_t>(of.padding)),
        dim_(of.dim),
        memory_(padded(values)) {}

  [[nodiscard]] JaggedHeads<void*> heads() const { return {memory_.data(), static_cast<std::int64_t>(stride_), dim_}; }
  [[nodiscard]] JaggedHeads<void const*> input() const {
    return {memory_.data(), static_cast<std::int64_t>(stride_), dim_};
  }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> values;
    std::vector<std::uint16_t> const all = memory_.values();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % stride_ < row_) values.push_back(number_of(all[i]));
    }
    return values;
  }
  [[nodiscard]] bool is_padding_untouched() const {
    std::vector<std::uint16_t> const all = memory_.values();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % stride_ >= row_ && !std::isnan(number_of(all[i]))) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] float number_of(std::uint16_t bits) const {
    return is_bfloat16_ ? device_emulator::bfloat16_to_float(bits) : device_emulator::float16_to_float(bits);
  }
  [[nodiscard]] std::vector<std::uint16_t> padded(std::vector<float> const& values) const {
    std::vector<std::uint16_t> bits(values.size() / row_ * stride_, 0x7fff);
    for (std::size_t i = 0; i < values.size(); ++i) {
      bits[i / row_ * stride_ + i % row_] =
          is_bfloat16_ ? device_emulator::float_to_bfloat16(values[i]) : device_emulator::float_to_float16(values[i]);
    }
    return bits;
  }

  bool is_bfloat16_;
  std::size_t row_, stride_;
  std::int64_t dim_;
  DeviceMemory<std::uint16_t> memory_;
};

float rounded(ElementType type, float x) {
  return type == ElementType::kBfloat16 ? device_emulator::bfloat16_to_float(device_emulator::float_to_bfloat16(x))
                                        : device_emulator::float16_to_float(device_emulator::float_to_float16(x));
}

/// A case on the device.
class DeviceCase {
 public:
  DeviceCase(AttentionCase const& of, ElementType type)
      : tensors(of, [type](float x) { return rounded(type, x); }),
        query(of, type, tensors.query),
        key(of, type, tensors.key),
        value(of, type, tensors.value),
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
    args.dim = args.value_dim = of.dim;
    args.query = query.input();
    args.key = key.input();
    args.value = value.input();
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

  AttentionTensors tensors;
  DeviceRows query, key, value;
  HstuForwardArgs args;

 private:
  DeviceMemory<std::int64_t> query_offsets_, key_offsets_, query_times_, key_times_;
  DeviceMemory<std::int32_t> num_contextual_, num_targets_;
  DeviceMemory<float> position_weights_, time_weights_, time_bounds_;
};

/// What is in it must not matter.
DeviceMemory<std::uint8_t> used_workspace(std::size_t size_bytes) {
  return DeviceMemory<std::uint8_t>(std::vector<std::uint8_t>(size_bytes, 0xff));
}

struct Tolerance {
  ElementType type;
  double out, gradients;
};
constexpr Tolerance kTolerances[] = {{ElementType::kBfloat16, 5e-3, 8e-3}, {ElementType::kFloat16, 1.5e-3, 2e-3}};

class HstuAttentionCuda : public testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    int count = 0, major = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (major != 9) GTEST_SKIP() << "not a GPU of compute capability 9.0";
  }
};

TEST_P(HstuAttentionCuda, GivesWhatTheOracleSays) {
  AttentionCase const& of = GetParam();
  for (Tolerance const& tolerance : kTolerances) {
    DeviceCase const on_device(of, tolerance.type);
    DeviceRows const out(of, tolerance.type, std::vector<float>(on_device.tensors.query.size(), NAN));
    HstuForwardArgs args = on_device.args;
    args.out = out.heads();
    auto const workspace = used_workspace(hstu_attention_forward_workspace_bytes(args));
    hstu_attention_forward_async(args, nullptr, workspace.data());
    EXPECT_LT(relative_error(out.values(), AttentionOracle(of, on_device.tensors).out()), tolerance.out);
    EXPECT_TRUE(out.is_padding_untouched());
  }
}

/// Gradients of a case, in the order query, key, value, position weights, time weights.
std::vector<std::vector<float>> gradients_of(AttentionCase const& of, DeviceCase const& on_device) {
  ElementType const type = on_device.args.type;
  AttentionTensors const& tensors = on_device.tensors;
  DeviceRows const grad_out(of, type, tensors.grad_out);
  std::vector<float> const no_queries(tensors.query.size(), NAN), no_keys(tensors.key.size(), NAN);
  DeviceRows const query(of, type, no_queries), key(of, type, no_keys), value(of, type, no_keys);
  DeviceMemory<float> const position(std::vector<float>(tensors.position_weights.size(), NAN));
  DeviceMemory<float> const time(std::vector<float>(tensors.time_weights.size(), NAN));
  HstuBackwardArgs const args{.forward = on_device.args,
                              .grad_out = grad_out.input(),
                              .grad_query = query.heads(),
                              .grad_key = key.heads(),
                              .grad_value = value.heads(),
                              .grad_position_weights = position.data_or_null(),
                              .grad_time_weights = time.data_or_null()};
  auto const workspace = used_workspace(hstu_attention_backward_workspace_bytes(args));
  hstu_attention_backward_async(args, nullptr, workspace.data());
  EXPECT_TRUE(query.is_padding_untouched() && key.is_padding_untouched() && value.is_padding_untouched());
  return {query.values(), key.values(), value.values(), position.values(), time.values()};
}

TEST_P(HstuAttentionCuda, GivesTheGradientsOfTheOracle) {
  AttentionCase const& of = GetParam();
  if (of.dim == 256) GTEST_SKIP() << "no gradients for dim 256";
  for (Tolerance const& tolerance : kTolerances) {
    DeviceCase const on_device(of, tolerance.type);
    auto const grads = gradients_of(of, on_device);
    AttentionGradients const expected = AttentionOracle(of, on_device.tensors).gradients();
    EXPECT_LT(relative_error(grads[0], expected.query), tolerance.gradients) << "of queries";
    EXPECT_LT(relative_error(grads[1], expected.key), tolerance.gradients) << "of keys";
    EXPECT_LT(relative_error(grads[2], expected.value), tolerance.gradients) << "of values";
    EXPECT_LT(relative_error(grads[3], expected.position_weights), tolerance.gradients) << "of position weights";
    EXPECT_LT(relative_error(grads[4], expected.time_weights), tolerance.gradients) << "of time weights";
  }
}

TEST_P(HstuAttentionCuda, GivesTheSameBitsEachTimeIfItIsToBeDeterministic) {
  AttentionCase of = GetParam();
  if (of.dim == 256 || of.has_position || !of.time_bounds.empty()) GTEST_SKIP() << "no kernel for this";
  of.options.determinism = Determinism::kDeterministic;
  DeviceCase const on_device(of, ElementType::kBfloat16);
  auto const first = gradients_of(of, on_device);
  EXPECT_LT(relative_error(first[0], AttentionOracle(of, on_device.tensors).gradients().query), 8e-3);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(gradients_of(of, on_device), first);
}

INSTANTIATE_TEST_SUITE_P(Hopper, HstuAttentionCuda, testing::ValuesIn(attention_cases()),
                         [](auto const& of) { return of.param.name; });

}  // namespace
}  // namespace headway::kernels
