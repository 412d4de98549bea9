// SPDX-License-Identifier: Apache-2.0

// Reduction of bias gradients over heads and sequences. Adding to shared weights from many threads would give results
// that depend on their order, so each head has memory of its own, and one thread adds it all up at the end.
//
// Example: max_position_distance 8, a sequence of 3 keys. Its position gradients have 2 * 3 - 1 = 5 elements, for
// distances -2 to 2. They belong to the weights 7 - 2 = 5 to 9 of the 15.

#pragma once

#include "hstu/cpu/backward_head.hpp"
#include "hstu/sequence.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::kernels::hstu {

/// Gradients of bias weights: first one set per head of each sequence, then their sum in the order of sequences and
/// heads. The result is therefore independent of threads. Memory: two elements per key and head (position), and all
/// time weights per head of a sequence.
template <class Real>
class BiasSums {
 public:
  explicit BiasSums(HstuBackwardArgs const& args)
      : args_(args),
        num_time_weights_(args.forward.bias.num_time_bounds + 1),
        of_position_(args.grad_position_weights == nullptr ? 0 : size(2 * sequences().num_keys)),
        of_time_(args.grad_time_weights == nullptr ? 0 : size(sequences().num_sequences * num_time_weights_)) {}

  /// Zero-initialised destination of a head's gradients. Different heads never share memory.
  [[nodiscard]] BiasGradients<Real> of(Sequence const& sequence, std::int64_t head) {
    return {of_position_.empty() ? nullptr : of_position_.data() + position_begin(sequence, head),
            of_time_.empty() ? nullptr : of_time_.data() + time_begin(sequence, head)};
  }

  /// Adds up and writes the gradients of the call. Sums are in double.
  void reduce() const {
    std::int64_t const middle = args_.forward.bias.max_position_distance - 1;
    reduce(of_position_, 2 * middle + 1, args_.grad_position_weights, [&](Sequence const& sequence, std::int64_t head) {
      std::int64_t const most = sequence.num_keys() - 1;
      return Part{position_begin(sequence, head), 2 * most + 1, middle - most};
    });
    reduce(of_time_, num_time_weights_, args_.grad_time_weights, [&](Sequence const& sequence, std::int64_t head) {
      return Part{time_begin(sequence, head), num_time_weights_, 0};
    });
  }

 private:
  /// Gradients of one head in the array of all heads: `size` elements from `from`, which belong to the weights from
  /// `to` on.
  struct Part {
    std::int64_t from, size, to;
  };

  /// Adds up the parts of all heads, in order.
  template <class PartOf>
  void reduce(std::vector<Real> const& parts, std::int64_t num_weights, void* gradients, PartOf part_of) const {
    if (gradients == nullptr) return;
    // One thread adds up everything. That is a small part of the work: a weight per distance or bucket and head,
    // against dim products per pair.
    std::vector<double> sums(static_cast<std::size_t>(num_weights));
    for (std::int64_t b = 0; b < sequences().num_sequences; ++b)
      for (std::int64_t head = 0; head < args_.forward.num_heads; ++head) {
        auto const [from, size, to] = part_of(sequence_of(args_.forward, b), head);
        for (std::int64_t i = 0; i < size; ++i)
          sums[static_cast<std::size_t>(to + i)] += parts[static_cast<std::size_t>(from + i)];
      }
    std::copy(sums.begin(), sums.end(), static_cast<Real*>(gradients));
  }

  [[nodiscard]] HstuSequences const& sequences() const { return args_.forward.sequences; }
  [[nodiscard]] std::size_t size(std::int64_t of_a_head) const {
    return static_cast<std::size_t>(of_a_head * args_.forward.num_heads);
  }
  [[nodiscard]] std::int64_t position_begin(Sequence const& sequence, std::int64_t head) const {
    return 2 * (head * sequences().num_keys + sequence.first_key);
  }
  [[nodiscard]] std::int64_t time_begin(Sequence const& sequence, std::int64_t head) const {
    return (head * sequences().num_sequences + sequence.index) * num_time_weights_;
  }

  HstuBackwardArgs const& args_;
  std::int64_t num_time_weights_;
  std::vector<Real> of_position_, of_time_;
};

}  // namespace headway::kernels::hstu
