#pragma once

#include "headway/kernels/element_type.hpp"
#include "headway/kernels/host_device.hpp"
#include "headway/kernels/hstu_mask.hpp"
#include "headway/kernels/run_tasks.hpp"

#include <cstdint>

namespace headway::kernels {

/// What weights of attention are multiplied by, besides `scale`.
enum class LengthScaling : std::uint8_t {
  kNone,
  kByNumKeys,  ///< By 1 / (keys of the sequence).
};

/// Whether the gradients of a call are the same bits each time.
enum class Determinism : std::uint8_t { kAny, kDeterministic };

struct HstuAttentionOptions {
  double alpha = 1;
  double scale = 1;
  LengthScaling length_scaling = LengthScaling::kNone;
  HstuMaskOptions mask{};
  Determinism determinism = Determinism::kAny;  ///< Of the backward pass on a device; on the CPU it always is.
};

/// Rows of B sequences one after the other: the heads of token t are at data + t * token_stride, `head_stride` apart,
/// and the columns of a head lie together. Strides count elements.
template <class Pointer>
struct JaggedHeads {
  Pointer data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
};

/// What is added to the products of queries and keys, the same for all heads; each part may be left out (null).
/// Weights are float32, or float64 where the elements are.
struct HstuBias {
  /// (2 * max_position_distance - 1): that of query token i and key j is at [max_position_distance - 1 + j - i].
  void const* position_weights = nullptr;
  std::int64_t max_position_distance = 0;  ///< At least HstuSequences::max_keys.

  /// (num_time_bounds + 1): of bucket b, the number of bounds that |query time - key time|, as float32, reaches.
  void const* time_weights = nullptr;
  float const* time_bounds = nullptr;  ///< (num_time_bounds), ascending.
  std::int64_t num_time_bounds = 0;
  std::int64_t const* query_times = nullptr;  ///< (queries of all sequences).
  std::int64_t const* key_times = nullptr;    ///< (keys of all sequences).

  [[nodiscard]] HEADWAY_HOST_DEVICE bool has_position() const { return position_weights != nullptr; }
  [[nodiscard]] HEADWAY_HOST_DEVICE bool has_time() const { return time_weights != nullptr; }
};

/// B sequences with their own numbers of queries and keys. Sequence b has queries query_offsets[b] to
/// query_offsets[b + 1] and likewise keys, at least as many: the queries are its last tokens. Rows behind the last
/// offset are of no sequence: nothing reads them, and those of outputs and gradients become 0.
struct HstuSequences {
  std::int64_t num_sequences = 0;
  std::int64_t const* query_offsets = nullptr;   ///< (num_sequences + 1), from 0, not descending.
  std::int64_t const* key_offsets = nullptr;     ///< (num_sequences + 1); may be the same array.
  std::int64_t num_queries = 0, num_keys = 0;    ///< Rows that there are: at least the last offsets.
  std::int64_t max_queries = 0, max_keys = 0;    ///< Of one sequence, at least.
  std::int32_t const* num_contextual = nullptr;  ///< (num_sequences), or null for none.
  std::int32_t const* num_targets = nullptr;     ///< (num_sequences), or null for none.
};

/// HSTU attention (Zhai et al. 2024, equation 3): for each query i and head
///
///   out_i = sum over keys j that i sees of SiLU(alpha * (q_i . k_j + bias_ij)) * scale * v_j
///
/// All pointers are to memory of the place where the call computes. Products are added up in float32 (float64 for
/// float64 elements).
struct HstuForwardArgs {
  HstuAttentionOptions options{};
  HstuSequences sequences{};
  ElementType type = ElementType::kFloat32;  ///< Of queries, keys, values and output.
  std::int32_t num_heads = 0, dim = 0, value_dim = 0;
  JaggedHeads<void const*> query{}, key{};  ///< (num_queries, num_heads, dim), (num_keys, num_heads, dim)
  JaggedHeads<void const*> value{};         ///< (num_keys, num_heads, value_dim)
  HstuBias bias{};
  JaggedHeads<void*> out{};  ///< (num_queries, num_heads, value_dim)
};

/// Gradients for that of the output. All are written whole; those of bias weights may be null where not wanted.
struct HstuBackwardArgs {
  HstuForwardArgs forward{};  ///< Without `out`.
  JaggedHeads<void const*> grad_out{};
  JaggedHeads<void*> grad_query{}, grad_key{}, grad_value{};
  void* grad_position_weights = nullptr;  ///< Of the shape and type of the weights.
  void* grad_time_weights = nullptr;
};

/// On the CPU. Cost: one pass over the blocks that the mask lets see each other; no memory but some blocks a thread.
/// The outcome does not depend on the number of threads.
/// @param num_threads at least 1
/// @param run_tasks runs them; none: threads are started for the call
/// @throws std::invalid_argument if sequences and sizes do not fit each other, naming them
void hstu_attention_forward(HstuForwardArgs const& args, int num_threads, RunTasks const& run_tasks = {});

/// The same of the gradients. Threads share the work by heads of sequences. Takes memory for the gradients of the keys
/// and values of one head of the longest sequence a thread, and for those of bias weights for two elements a key and
/// head (position) and the weights a sequence and head (time).
void hstu_attention_backward(HstuBackwardArgs const& args, int num_threads, RunTasks const& run_tasks = {});

}  // namespace headway::kernels
