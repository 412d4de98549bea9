// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/batch_record.hpp"

#include <cstddef>
#include <deque>
#include <filesystem>
#include <mutex>

namespace headway::serving {

/// Keeps the last batches of a rank, and writes them for Perfetto (ui.perfetto.dev). Thread-safe.
class BatchTrace {
 public:
  /// @param most_batches, most_requests that are kept; a request takes about 2 KB while a file is written
  explicit BatchTrace(int rank, std::size_t most_batches = 4096, std::size_t most_requests = 65536)
      : rank_(rank), most_batches_(most_batches), most_requests_(most_requests) {}

  void add(BatchRecord const& batch);
  /// Writes a file in Chrome's Trace Event Format. Times are microseconds since 1970, so that files of several ranks
  /// can be looked at together. Each batch in flight has a row of its own with its stages; requests are asynchronous
  /// events, from when they came until they were answered.
  /// @throws base::SystemError
  void write(std::filesystem::path const& path) const;

 private:
  int rank_;
  std::size_t most_batches_, most_requests_;
  mutable std::mutex mutex_;
  std::deque<BatchRecord> batches_;
  std::size_t num_requests_ = 0;  ///< In `batches_`.
};

/// Path of a rank's file: `trace.json` becomes `trace.rank0.json`.
[[nodiscard]] std::filesystem::path path_of_rank(std::filesystem::path const& path, int rank);

}  // namespace headway::serving
