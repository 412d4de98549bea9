// SPDX-License-Identifier: Apache-2.0

// torch.ops.headway.plan_batches. python/headway/ops documents the arguments.

#include "headway/kernels/batch_plan.hpp"
#include "kernel_calls.hpp"
#include "torch_headers.hpp"

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace headway::kernels {

namespace {

constexpr std::array<std::pair<std::string_view, BatchPlanMethod>, 4> kMethods{
    {{"fixed_greedy", BatchPlanMethod::kFixedGreedy},
     {"fixed_zigzag", BatchPlanMethod::kFixedZigzag},
     {"variable_greedy", BatchPlanMethod::kVariableGreedy},
     {"variable_segments", BatchPlanMethod::kVariableSegments}}};

BatchPlanMethod method_of(std::string_view name) {
  for (auto const& [known, method] : kMethods) {
    if (name == known) return method;
  }
  TORCH_CHECK_VALUE(false, "plan_batches: there is no method ", name,
                    ", only fixed_greedy, fixed_zigzag, variable_greedy and variable_segments");
}

std::span<std::int64_t const> numbers(at::Tensor const& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

at::Tensor plan(at::Tensor const& weights, std::optional<at::Tensor> const& tokens, std::int64_t num_ranks,
                std::string_view method, std::int64_t max_tokens, std::int64_t step) {
  for (at::Tensor const& each : {weights, tokens.value_or(weights)}) {
    TORCH_CHECK_VALUE(each.dim() == 1 && each.scalar_type() == at::kLong && each.numel() == weights.numel(),
                      "plan_batches: weights and tokens must be one dimension of int64 and of one size");
  }
  TORCH_CHECK_VALUE(tokens.has_value() || max_tokens == 0, "plan_batches: max_tokens needs tokens");
  at::Tensor const list = weights.contiguous(), of_tokens = tokens.value_or(at::Tensor()).defined()
                                                                ? tokens->contiguous()
                                                                : at::empty({0}, weights.options());
  at::Tensor ranks = at::empty_like(list);
  call_kernel([&] {
    plan_batches({.method = method_of(method),
                  .weights = numbers(list),
                  .tokens = numbers(of_tokens),
                  .max_tokens = max_tokens,
                  .num_ranks = num_ranks,
                  .step = step,
                  .ranks = {ranks.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(ranks.numel())}});
  });
  return ranks;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(headway, library) {
  library.def(
      "plan_batches(Tensor weights, Tensor? tokens, int num_ranks, str method, int max_tokens, int step) -> Tensor");
}

TORCH_LIBRARY_IMPL(headway, CPU, library) { library.impl("plan_batches", &plan); }

}  // namespace headway::kernels
