#include "headway/kernels/hstu_attention.hpp"

#include "hstu/check_arguments.hpp"
#include "hstu/cpu/backward_pass.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/clear_rows.hpp"
#include "hstu/cpu/forward_pass.hpp"

#include <stdexcept>
#include <string>

namespace headway::kernels {
namespace {

void check_num_threads(int num_threads) {
  if (num_threads < 1)
    throw std::invalid_argument("HSTU attention: num_threads is " + std::to_string(num_threads) +
                                " and must be at least 1");
}

/// Whether this processor multiplies elements of the type in pairs.
bool are_paired(ElementType type) {
  return type == ElementType::kBfloat16 && !hstu::usable_block_kernels<hstu::Bfloat16Pair>().empty();
}

}  // namespace

void hstu_attention_forward(HstuForwardArgs const& args, int num_threads, RunTasks const& run_tasks) {
  check_num_threads(num_threads);
  hstu::check_arguments(args);
  hstu::clear_query_rows_behind(args, args.out, args.value_dim);
  if (args.type == ElementType::kFloat64)
    hstu::run_forward_pass<double>(args, num_threads, run_tasks);
  else if (are_paired(args.type))
    hstu::run_forward_pass<hstu::Bfloat16Pair>(args, num_threads, run_tasks);
  else
    hstu::run_forward_pass<float>(args, num_threads, run_tasks);
}

void hstu_attention_backward(HstuBackwardArgs const& args, int num_threads, RunTasks const& run_tasks) {
  check_num_threads(num_threads);
  hstu::check_arguments(args);
  hstu::clear_query_rows_behind(args.forward, args.grad_query, args.forward.dim);
  hstu::clear_key_rows_behind(args.forward, args.grad_key, args.forward.dim);
  hstu::clear_key_rows_behind(args.forward, args.grad_value, args.forward.value_dim);
  if (args.forward.type == ElementType::kFloat64)
    hstu::run_backward_pass<double>(args, num_threads, run_tasks);
  else if (are_paired(args.forward.type))
    hstu::run_backward_pass<hstu::Bfloat16Pair>(args, num_threads, run_tasks);
  else
    hstu::run_backward_pass<float>(args, num_threads, run_tasks);
}

}  // namespace headway::kernels
