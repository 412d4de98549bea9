// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/embedding/record_import.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Records in a file: their position, and the range of their keys. A checkpoint's manifest lists the blocks of its
/// files. A virtual bucket is one of 2^14 ranges of key hashes (routing.hpp), the unit in which ranks divide keys.
struct RecordBlock {
  std::uint64_t offset = 0;  ///< In bytes, from the begin of the file.
  std::uint64_t num_bytes = 0;
  std::uint32_t crc32 = 0;   ///< CRC-32 of all bytes (base::crc32).
  bool are_pending = false;  ///< Keys that wait for a row, with their counts. False: keys with their rows.
  std::uint64_t num_keys = 0;
  std::uint32_t first_bucket = 0,
                end_bucket = 0;  ///< Virtual buckets of the keys: the first, and the one after the last.
};

/// Records of a block in checkpoints.
inline constexpr std::size_t kRecordsPerBlock = std::size_t{1} << 16;

/// Ranges of virtual buckets, (first, end), in which a table with `num_keys` keys is written: the list of the keys of
/// one range is in memory at a time, and each range costs a scan of the whole table.
[[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint32_t>> bucket_ranges(
    std::size_t num_keys, std::size_t records_per_block = kRecordsPerBlock);

/// Writes the records of tables into a new file, block by block. record_file.cpp has the format. One thread uses it.
class RecordFileWriter {
 public:
  /// Creates the file, or empties it.
  /// @throws base::SystemError if it cannot be created; base::UsageError for blocks without records
  explicit RecordFileWriter(std::string path, std::size_t records_per_block = kRecordsPerBlock);
  RecordFileWriter(RecordFileWriter const&) = delete;
  RecordFileWriter& operator=(RecordFileWriter const&) = delete;
  ~RecordFileWriter();

  /// Writes the keys in virtual buckets [first_bucket, end_bucket): those with a row, or those that wait for one. Reads
  /// the table during the call; the last block may still be written after it.
  /// @throws base::SystemError if an earlier block could not be written; base::UsageError in every call after that
  void write(Table const& table, bool are_pending, std::uint32_t first_bucket, std::uint32_t end_bucket);
  /// Writes all keys of a table: those with a row, then those that wait for one.
  /// @throws as write()
  void write_table(Table const& table);
  /// Waits until all is on disk. Nothing can be written afterwards.
  /// @returns the blocks, in the order of writing
  /// @throws base::SystemError if a block could not be written; base::UsageError in every call after that
  std::vector<RecordBlock> finish();
  /// Blocks so far.
  [[nodiscard]] std::size_t num_blocks() const { return blocks_.size(); }

 private:
  void write_in_background(Records records, bool are_pending);
  void wait_for_last();

  std::string path_;
  std::size_t records_per_block_;
  base::FileDescriptor file_;
  std::uint64_t size_ = 0;  ///< Bytes written or being written.
  std::vector<RecordBlock> blocks_;
  bool has_failed_ = false;          ///< Or is finished: nothing can be written.
  std::future<std::uint32_t> last_;  ///< CRC-32 of the last block, once it is written.
};

/// A block to be read.
struct RecordSource {
  std::string path;
  RecordBlock block;
  std::size_t dim = 0, state_size = 0;  ///< Columns of embeddings and optimizer states in the file.
};

/// Reads a block.
/// @throws base::SystemError if the file cannot be read; std::runtime_error if it is truncated or altered
[[nodiscard]] Records read_records(RecordSource const& source);

/// Imports the records of a table whose Key::table is one of `target.table_ids` into the table of `target`.
/// @throws as import_records_of_rank()
void copy_records(Table const& table, RecordTarget const& target);

/// import_records_of_rank() of all blocks: rows before pending keys. Reads one block while it imports another.
/// @throws as read_records() and import_records_of_rank(). Records of blocks before the bad one are imported.
void load_records(std::span<RecordSource const> sources, std::span<RecordTarget const> targets, std::uint32_t rank,
                  std::uint32_t num_ranks);

}  // namespace headway::embedding
