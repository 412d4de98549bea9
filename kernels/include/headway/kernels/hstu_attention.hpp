// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/element_type.hpp"
#include "headway/kernels/executor.hpp"
#include "headway/kernels/host_device.hpp"
#include "headway/kernels/hstu_mask.hpp"

#include <cstdint>

namespace headway::kernels {

/// Factor of attention weights that depends on the sequence, besides `scale`.
enum class LengthScaling : std::uint8_t {
  kNone,
  kByNumKeys,  ///< 1 / (number of keys of the sequence).
};

/// Are the gradients of a call required to be bitwise reproducible?
enum class Determinism : std::uint8_t { kAny, kDeterministic };

/// Options of HSTU attention.
struct HstuAttentionOptions {
  /// Factor of q . k + bias, before SiLU.
  double alpha = 1;
  /// Factor of the attention weights, after SiLU.
  double scale = 1;
  LengthScaling length_scaling = LengthScaling::kNone;
  HstuMaskOptions mask{};
  Determinism determinism = Determinism::kAny;  ///< For the backward pass on a device; the CPU is always deterministic.
};

/// Rows of B sequences, one after the other. The heads of token t begin at data + t * token_stride and are
/// `head_stride` apart; the columns of a head are contiguous. Strides count elements.
template <class Pointer>
struct JaggedHeads {
  Pointer data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
};

/// Bias added to q . k, the same for all heads. Each of the two parts is optional (null). Weights are float32, or
/// float64 if the elements are.
struct HstuBias {
  /// (2 * max_position_distance - 1): weights; query token i and key j use element [max_position_distance - 1 + j - i].
  void const* position_weights = nullptr;
  std::int64_t max_position_distance = 0;  ///< At least HstuSequences::max_keys.

  /// (num_time_bounds + 1): weights by bucket. The bucket is the number of bounds that |query time - key time|, rounded
  /// to float32, reaches.
  void const* time_weights = nullptr;
  float const* time_bounds = nullptr;  ///< (num_time_bounds), ascending.
  std::int64_t num_time_bounds = 0;
  std::int64_t const* query_times = nullptr;  ///< (number of queries of all sequences).
  std::int64_t const* key_times = nullptr;    ///< (number of keys of all sequences).

  [[nodiscard]] HEADWAY_HOST_DEVICE bool has_position() const { return position_weights != nullptr; }
  [[nodiscard]] HEADWAY_HOST_DEVICE bool has_time() const { return time_weights != nullptr; }
};

/// Consecutive tokens of a sequence.
struct HstuTokenRun {
  std::int32_t first = 0;  ///< Index of the first token in the whole sequence.
  std::int32_t rows = 0;   ///< Number of tokens; 0: none.
};

/// Most runs of queries of a sequence: two chunks of its history, and targets.
inline constexpr std::int64_t kMaxQueryRuns = 3;

/// B sequences of queries and keys of different lengths. Sequence b has queries query_offsets[b] to query_offsets[b +
/// 1], and keys likewise. It has at least as many keys as queries; the queries are its last tokens. Rows behind the
/// last offset belong to no sequence: nothing reads them, and those of outputs and gradients become 0.
///
/// Contextual tokens (for instance a user's features) come first in a sequence, targets (items to be scored) last;
/// the mask treats both specially (hstu_mask.hpp). Example: keys c h h h t t with num_contextual 1 and num_targets 2.
///
/// With query_runs the queries of a sequence are up to three runs of its tokens instead, one after the other. Masks and
/// biases go by a token's place in the whole sequence, whose tokens all have a row of keys. Rows of keys that no query
/// sees need not be filled with anything but finite numbers. Example: runs (1, 2), (5, 1), (0, 0): the queries are
/// tokens 1, 2 and 5.
struct HstuSequences {
  std::int64_t num_sequences = 0;
  std::int64_t const* query_offsets = nullptr;   ///< (num_sequences + 1), from 0, not descending.
  std::int64_t const* key_offsets = nullptr;     ///< (num_sequences + 1); may be the same array.
  std::int64_t num_queries = 0, num_keys = 0;    ///< Allocated rows: at least the last offsets.
  std::int64_t max_queries = 0, max_keys = 0;    ///< Upper bounds on the length of one sequence.
  std::int32_t const* num_contextual = nullptr;  ///< (num_sequences): contextual tokens of each, or null for none.
  std::int32_t const* num_targets = nullptr;     ///< (num_sequences): targets of each, or null for none.
  /// (num_sequences, kMaxQueryRuns): ascending, disjoint; null: queries are the last tokens. On the CPU only.
  HstuTokenRun const* query_runs = nullptr;
};

/// HSTU attention (Zhai et al. 2024, equation 3): for each query i and head
///
///   out_i = sum over keys j that i sees of SiLU(alpha * (q_i . k_j + bias_ij)) * scale * v_j
///
/// All pointers are to memory of the device that computes. Products are accumulated in float32 (float64 for float64
/// elements).
/// HstuSequenceMask::sees() says which keys a query sees.
struct HstuForwardArgs {
  HstuAttentionOptions options{};
  HstuSequences sequences{};
  ElementType type = ElementType::kFloat32;  ///< Type of queries, keys, values and output.
  std::int32_t num_heads = 0, dim = 0, value_dim = 0;
  JaggedHeads<void const*> query{}, key{};  ///< (num_queries, num_heads, dim), (num_keys, num_heads, dim)
  JaggedHeads<void const*> value{};         ///< (num_keys, num_heads, value_dim)
  HstuBias bias{};
  JaggedHeads<void*> out{};  ///< (num_queries, num_heads, value_dim)
};

/// Type of the gradients of keys and values.
enum class KeyGradients : std::uint8_t {
  kOfElements,  ///< The type of the elements.
  kOfSums,      ///< The type of sums, for partial gradients that are added up later: float32, or float64 for float64.
};

/// Arguments of the backward pass, for a given gradient of the output. All gradients are overwritten. Gradients of bias
/// weights may be null if they are not wanted.
struct HstuBackwardArgs {
  HstuForwardArgs forward{};  ///< `out` is unused.
  JaggedHeads<void const*> grad_out{};
  JaggedHeads<void*> grad_query{}, grad_key{}, grad_value{};
  void* grad_position_weights = nullptr;  ///< Shape and type of the weights.
  void* grad_time_weights = nullptr;
  KeyGradients key_gradients = KeyGradients::kOfElements;  ///< kOfSums: on the CPU only.

  /// Type of `grad_key` and `grad_value`.
  [[nodiscard]] ElementType key_gradient_type() const {
    bool const is_wide = key_gradients == KeyGradients::kOfSums && forward.type != ElementType::kFloat64;
    return is_wide ? ElementType::kFloat32 : forward.type;
  }
};

/// Computes the forward pass on the CPU. Cost: one pass over the blocks that the mask makes visible; memory for a few
/// blocks per thread. The result does not depend on the number of threads.
/// @param num_threads at least 1
/// @param executor runs the tasks; if empty, threads are started for the call
/// @throws std::invalid_argument that names sequences and sizes which do not fit each other
void hstu_attention_forward(HstuForwardArgs const& args, int num_threads, Executor const& executor = {});

/// Computes the backward pass on the CPU. Heads of sequences are shared out among threads. Memory: gradients of keys
/// and values of one head of the longest sequence per thread; for position weights, two elements per key and head; for
/// time weights, all weights once per head of a sequence.
void hstu_attention_backward(HstuBackwardArgs const& args, int num_threads, Executor const& executor = {});

}  // namespace headway::kernels
