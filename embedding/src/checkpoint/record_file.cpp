// SPDX-License-Identifier: Apache-2.0

// Files of records: the contents of a rank's tables, in blocks that any number of ranks can read back. A virtual bucket
// is one of 2^14 ranges of key hashes, by which ranks divide keys (routing.hpp).
//
// Idea: keys are written in the order of their virtual buckets. So a rank that reads with another number of ranks needs
// only the blocks whose buckets overlap its own, and drops the keys of other ranks in the blocks at both ends. Writing
// a block, and reading one, overlap with export and import of the next.
//
// Format: a file is a sequence of blocks, and a block a sequence of columns, little-endian, without padding: ids (8
//   bytes a key), tables, counts, steps (4 each), embeddings (dim floats), optimizer states (state_size floats). Blocks
//   of keys that wait for a row end after the counts. Positions and sizes are not in the file but in RecordBlock.
// Example: a block of 2 keys with dim 4 and no state has 2 * (8 + 3 * 4 + 4 * 4) = 72 bytes.
// Invariants: a block has keys of one kind and one merged table. Its CRC-32 covers all its bytes.
// Complexity: a range of buckets costs one scan of the table's keys, and each record is read, summed and written once.
// Source: MTGRBoost, section 5 (checkpoints that another number of ranks reads, without a scan of the whole).

#include "headway/embedding/record_file.hpp"

#include "headway/base/crc32.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace headway::embedding {

namespace {

/// Bytes between two calls of fdatasync(): the disk writes while the next blocks are exported.
constexpr std::uint64_t kSyncBytes = std::uint64_t{1} << 28;
constexpr mode_t kMode = 0666;  ///< Without the bits of the umask.

/// The columns of a block, in the order of the file.
template <class Byte, class SomeRecords>
std::array<std::span<Byte>, 6> columns_of(SomeRecords& records, bool are_pending) {
  auto const bytes = [](auto& column) {
    return std::span<Byte>(reinterpret_cast<Byte*>(column.data()), std::span(column).size_bytes());
  };
  if (are_pending) return {bytes(records.ids), bytes(records.tables), bytes(records.counts)};
  return {bytes(records.ids),   bytes(records.tables),     bytes(records.counts),
          bytes(records.steps), bytes(records.embeddings), bytes(records.states)};
}

void write_all(int file, std::span<std::byte const> bytes, std::string const& path) {
  while (!bytes.empty()) {
    auto const written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw base::SystemError("write", errno, path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

/// Reads from `offset`. @returns the number of bytes, fewer than asked for at the end of the file
std::size_t read_all(int file, std::span<std::byte> bytes, std::uint64_t offset, std::string const& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    auto const got = ::pread(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw base::SystemError("pread", errno, path);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::uint32_t bucket_of(Records const& records, std::size_t i) {
  return virtual_bucket_of(hash_of({.id = records.ids[i], .table = records.tables[i]}));
}

/// Names the place of a block in errors.
std::string place_of(RecordBlock const& block) {
  return std::to_string(block.num_bytes) + " bytes at " + std::to_string(block.offset);
}

/// Checks sizes that come from a manifest before memory is taken for them.
/// @throws std::runtime_error if the block has other bytes than its keys take, or the file ends before it does
void expect_sizes(RecordSource const& source, int file) {
  constexpr std::size_t kMostDim = std::size_t{1} << 20, kMostState = std::size_t{1} << 22;
  auto const& block = source.block;
  std::uint64_t const key_bytes =
      block.are_pending ? 16 : 20 + sizeof(float) * (std::uint64_t{source.dim} + source.state_size);
  bool const fits = source.dim <= kMostDim && source.state_size <= kMostState &&
                    block.num_keys <= block.num_bytes / key_bytes && block.num_keys * key_bytes == block.num_bytes;
  if (!fits) {
    throw std::runtime_error(source.path + ": " + place_of(block) + " are not " + std::to_string(block.num_keys) +
                             " records of " + std::to_string(key_bytes) + " bytes");
  }
  struct stat status {};
  if (::fstat(file, &status) != 0) throw base::SystemError("fstat", errno, source.path);
  auto const size = static_cast<std::uint64_t>(status.st_size);
  auto const there = size > block.offset ? size - block.offset : 0;
  if (there < block.num_bytes) {
    throw std::runtime_error(source.path + " is truncated: " + std::to_string(there) + " of " + place_of(block));
  }
}

/// A part of listed keys, with counts if they wait for a row.
Records part_of(Records const& listed, std::size_t begin, std::size_t end) {
  auto const part = [&](auto const& column) {
    using Column = std::remove_cvref_t<decltype(column)>;
    if (column.empty()) return Column();
    return Column(column.begin() + static_cast<std::ptrdiff_t>(begin),
                  column.begin() + static_cast<std::ptrdiff_t>(end));
  };
  Records result;
  result.ids = part(listed.ids);
  result.tables = part(listed.tables);
  result.counts = part(listed.counts);
  return result;
}

std::size_t expect_at_least_one(std::size_t records_per_block) {
  base::expects(records_per_block > 0, "a block has at least one record");
  return records_per_block;
}

}  // namespace

std::vector<std::pair<std::uint32_t, std::uint32_t>> bucket_ranges(std::size_t num_keys,
                                                                   std::size_t records_per_block) {
  constexpr std::size_t kMostRanges = 8;                     // Tables with more keys at once have more.
  constexpr std::size_t kKeysAtOnce = std::size_t{1} << 23;  // Limit of the mean number of keys in a range.
  auto const num_ranges =
      std::max(num_keys / kKeysAtOnce + 1, std::min(kMostRanges, num_keys / (2 * records_per_block)));
  auto const width = std::max<std::uint32_t>(1, kNumVirtualBuckets / static_cast<std::uint32_t>(num_ranges));
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;
  for (std::uint32_t first = 0; first < kNumVirtualBuckets; first += width) {
    ranges.emplace_back(first, std::min(first + width, kNumVirtualBuckets));
  }
  return ranges;
}

RecordFileWriter::RecordFileWriter(std::string path, std::size_t records_per_block)
    : path_(std::move(path)),
      records_per_block_(expect_at_least_one(records_per_block)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode)) {
  if (!file_.valid()) throw base::SystemError("open", errno, path_);
}

RecordFileWriter::~RecordFileWriter() {
  if (last_.valid()) last_.wait();  // It uses the file.
}

void RecordFileWriter::write(Table const& table, bool are_pending, std::uint32_t first_bucket,
                             std::uint32_t end_bucket) {
  auto const listed = are_pending ? table.list_pending(first_bucket, end_bucket) : table.list(first_bucket, end_bucket);
  for (std::size_t begin = 0; begin < listed.ids.size(); begin += records_per_block_) {
    Records part = part_of(listed, begin, std::min(begin + records_per_block_, listed.ids.size()));
    write_in_background(are_pending ? std::move(part) : table.export_records(part.keys()), are_pending);
  }
}

void RecordFileWriter::write_table(Table const& table) {
  auto const size = table.size();
  for (bool const are_pending : {false, true}) {
    for (auto const& [first, end] : bucket_ranges(are_pending ? size.pending : size.rows, records_per_block_)) {
      write(table, are_pending, first, end);
    }
  }
}

void RecordFileWriter::write_in_background(Records records, bool are_pending) {
  RecordBlock block{.offset = size_, .are_pending = are_pending, .num_keys = records.ids.size()};
  block.first_bucket = bucket_of(records, 0);
  block.end_bucket = bucket_of(records, records.ids.size() - 1) + 1;
  for (auto const column : columns_of<std::byte const>(std::as_const(records), are_pending)) {
    block.num_bytes += column.size();
  }
  wait_for_last();
  has_failed_ = true;  // Until the block is on its way.
  bool const syncs = size_ / kSyncBytes != (size_ + block.num_bytes) / kSyncBytes;
  size_ += block.num_bytes;
  blocks_.push_back(block);
  last_ = std::async(std::launch::async, [this, are_pending, syncs, records = std::move(records)] {
    std::uint32_t sum = 0;
    for (auto const column : columns_of<std::byte const>(records, are_pending)) {
      sum = base::crc32(column, sum);
      write_all(file_.get(), column, path_);
    }
    if (syncs && ::fdatasync(file_.get()) != 0) throw base::SystemError("fdatasync", errno, path_);
    return sum;
  });
  has_failed_ = false;
}

void RecordFileWriter::wait_for_last() {
  base::expects(!has_failed_, path_ + ": a block could not be written before, or the file is finished");
  has_failed_ = true;
  if (last_.valid()) blocks_.back().crc32 = last_.get();
  has_failed_ = false;
}

std::vector<RecordBlock> RecordFileWriter::finish() {
  wait_for_last();
  has_failed_ = true;  // Nothing can be written any more.
  if (::fsync(file_.get()) != 0) throw base::SystemError("fsync", errno, path_);
  file_.reset();
  return std::move(blocks_);
}

Records read_records(RecordSource const& source) {
  auto const& block = source.block;
  base::FileDescriptor const file(::open(source.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) throw base::SystemError("open", errno, source.path);
  expect_sizes(source, file.get());
  Records records;
  records.ids.resize(block.num_keys);
  records.tables.resize(block.num_keys);
  records.counts.resize(block.num_keys);
  if (!block.are_pending) {
    records.steps.resize(block.num_keys);
    records.embeddings.resize(block.num_keys * source.dim);
    records.states.resize(block.num_keys * source.state_size);
  }
  std::uint64_t at = 0;
  std::uint32_t sum = 0;
  for (auto const column : columns_of<std::byte>(records, block.are_pending)) {
    auto const got = read_all(file.get(), column, block.offset + at, source.path);
    at += got;
    sum = base::crc32(column.first(got), sum);
    if (got < column.size()) break;
  }
  if (at != block.num_bytes) {
    throw std::runtime_error(source.path + " is truncated: " + std::to_string(at) + " of " + place_of(block));
  }
  if (sum != block.crc32) {
    throw std::runtime_error(source.path + " was altered: the checksum of " + place_of(block) + " is wrong");
  }
  return records;
}

}  // namespace headway::embedding
