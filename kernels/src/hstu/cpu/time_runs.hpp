#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "hstu/cpu/token_range.hpp"
#include "hstu/sequence.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// The time buckets of a block of keys (rows) and queries, as runs of queries that share one. Times mostly ascend: then
/// runs are long, and end where those of the key before do or near by; where they do not, each query is looked at.
class TimeRuns {
 public:
  explicit TimeRuns(HstuBias const& bias);

  void find(Sequence const& sequence, TokenRange queries, TokenRange keys);

  /// Calls visit(begin, end, bucket) for the runs of a row of the block found last.
  template <class Visit>
  void for_each(std::int64_t row, Visit visit) const {
    std::int32_t const* const end = ends_.data() + row * kBlockSize;
    std::int32_t const* const bucket = buckets_.data() + row * kBlockSize;
    std::int64_t begin = 0;
    for (std::int64_t run = 0; begin < num_queries_; begin = end[run++]) visit(begin, end[run], bucket[run]);
  }

 private:
  /// Of a key and a query; as exact as float32 is, whatever the times.
  struct Distance {
    std::int64_t key_time;
    float operator()(std::int64_t query_time) const;
  };

  void find_row(std::int64_t key_time, std::int64_t row);
  [[nodiscard]] bool is_in(std::int64_t bucket, float distance) const;
  [[nodiscard]] std::int64_t bucket_of(float distance, std::int64_t near_by) const;
  [[nodiscard]] std::int64_t end_of_run(std::int64_t begin, std::int64_t bucket, std::int64_t key_time,
                                        std::int64_t near_by) const;

  HstuBias bias_;
  AlignedBuffer<std::int32_t> ends_, buckets_;  ///< (kBlockSize, kBlockSize): those of the runs of each row.
  std::int64_t const* query_times_ = nullptr;   ///< Of the block.
  std::int64_t num_queries_ = 0;
  bool do_queries_ascend_ = false;
};

}  // namespace headway::kernels::hstu
