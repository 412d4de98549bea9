#include "hstu/cpu/backward_pass.hpp"

#include "hstu/cpu/backward_head.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/parallel_for.hpp"
#include "hstu/sequence.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

namespace headway::kernels::hstu {
namespace {

/// Gradients of bias weights, first of each head of each sequence and then, in that order, of all, so that threads
/// make no difference. Takes memory for two elements a key and head, and for the time weights a sequence and head.
template <class Real>
class BiasSums {
 public:
  explicit BiasSums(HstuBackwardArgs const& args)
      : args_(args),
        num_time_weights_(args.forward.bias.num_time_bounds + 1),
        of_position_(args.grad_position_weights == nullptr ? 0 : size(2 * sequences().num_keys)),
        of_time_(args.grad_time_weights == nullptr ? 0 : size(sequences().num_sequences * num_time_weights_)) {}

  [[nodiscard]] BiasGradients<Real> of(Sequence const& sequence, std::int64_t head) {
    return {of_position_.empty() ? nullptr : of_position_.data() + position_begin(sequence, head),
            of_time_.empty() ? nullptr : of_time_.data() + time_begin(sequence, head)};
  }

  /// Writes the gradients of the call.
  void add_up() const {
    if (args_.grad_position_weights != nullptr) add_up_position();
    if (args_.grad_time_weights != nullptr) add_up_time();
  }

 private:
  [[nodiscard]] HstuSequences const& sequences() const { return args_.forward.sequences; }
  [[nodiscard]] std::size_t size(std::int64_t a_head) const {
    return static_cast<std::size_t>(a_head * args_.forward.num_heads);
  }
  [[nodiscard]] std::int64_t position_begin(Sequence const& sequence, std::int64_t head) const {
    return 2 * (head * sequences().num_keys + sequence.first_key);
  }
  [[nodiscard]] std::int64_t time_begin(Sequence const& sequence, std::int64_t head) const {
    return (head * sequences().num_sequences + sequence.index) * num_time_weights_;
  }

  /// Adds `parts` to sums from `first` on, for each head of each sequence.
  template <class AddPart>
  void for_each_head(AddPart add_part) const {
    for (std::int64_t b = 0; b < sequences().num_sequences; ++b) {
      Sequence const sequence = sequence_of(args_.forward, b);
      for (std::int64_t head = 0; head < args_.forward.num_heads; ++head) add_part(sequence, head);
    }
  }

  void add_up_position() const {
    std::int64_t const middle = args_.forward.bias.max_position_distance - 1;
    std::vector<double> sums(static_cast<std::size_t>(2 * middle + 1));
    for_each_head([&](Sequence const& sequence, std::int64_t head) {
      std::int64_t const from = position_begin(sequence, head), to = middle - (sequence.num_keys() - 1);
      for (std::int64_t i = 0; i < 2 * sequence.num_keys() - 1; ++i)
        sums[static_cast<std::size_t>(to + i)] += of_position_[static_cast<std::size_t>(from + i)];
    });
    std::copy(sums.begin(), sums.end(), static_cast<Real*>(args_.grad_position_weights));
  }

  void add_up_time() const {
    std::vector<double> sums(static_cast<std::size_t>(num_time_weights_));
    for_each_head([&](Sequence const& sequence, std::int64_t head) {
      std::int64_t const from = time_begin(sequence, head);
      for (std::int64_t i = 0; i < num_time_weights_; ++i)
        sums[static_cast<std::size_t>(i)] += of_time_[static_cast<std::size_t>(from + i)];
    });
    std::copy(sums.begin(), sums.end(), static_cast<Real*>(args_.grad_time_weights));
  }

  HstuBackwardArgs const& args_;
  std::int64_t num_time_weights_;
  std::vector<Real> of_position_, of_time_;
};

/// Sequences, those with most work first: so that no thread begins a long one when others have finished.
std::vector<std::int64_t> longest_first(HstuForwardArgs const& args) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(args.sequences.num_sequences));
  std::iota(order.begin(), order.end(), 0);
  auto const work = [&](std::int64_t b) {
    Sequence const sequence = sequence_of(args, b);
    return sequence.num_queries() * sequence.num_keys();
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return work(a) > work(b); });
  return order;
}

}  // namespace

template <class Real>
void run_backward_pass(HstuBackwardArgs const& args, int num_threads) {
  BlockKernels<Real> const& kernels = usable_block_kernels<Real>().back();
  std::vector<std::int64_t> const order = longest_first(args.forward);
  std::int64_t const num_heads = args.forward.num_heads, num_items = args.forward.sequences.num_sequences * num_heads;
  BiasSums<Real> sums(args);
  std::vector<std::unique_ptr<BackwardHead<Real>>> heads;
  for (int thread = 0; thread < num_threads && (thread == 0 || thread < num_items); ++thread)
    heads.push_back(std::make_unique<BackwardHead<Real>>(args, kernels));

  parallel_for(num_items, num_threads, [&](int thread, std::int64_t item) {
    Sequence const sequence = sequence_of(args.forward, order[static_cast<std::size_t>(item / num_heads)]);
    std::int64_t const head = item % num_heads;
    heads[static_cast<std::size_t>(thread)]->compute(sequence, head, sums.of(sequence, head));
  });
  sums.add_up();
}

template void run_backward_pass<float>(HstuBackwardArgs const& args, int num_threads);
template void run_backward_pass<double>(HstuBackwardArgs const& args, int num_threads);

}  // namespace headway::kernels::hstu
