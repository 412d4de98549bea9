// SPDX-License-Identifier: Apache-2.0

// Layout of the bodies, in words of 64 bits (words.hpp).
//
//   save     step, end, length of the path, path
//   saved    number of merged tables; for each: dim, state size, number of blocks, blocks
//   load     step, index, count; number of merged tables; for each: number of tables, tables, whether there is an
//            initial state, that state; number of sources; for each: length of the path, path, block, dim, state size
//   evicted  number of merged tables, rows of each
// A block has seven words, in the order of RecordBlock.

#include "headway/hybrid/checkpoint_messages.hpp"

#include "messages/words.hpp"

namespace headway::hybrid {

namespace {

using embedding::RecordBlock;

constexpr std::uint64_t kMostMergedTables = 1 << 12, kMostTables = 1 << 16, kMostPathBytes = 1 << 12,
                        kMostBlocks = 1 << 24, kMost32 = 0xffffffff;

void write_block(WordWriter& to, RecordBlock const& block) {
  to.word(block.offset).word(block.num_bytes).word(block.crc32).word(block.are_pending ? 1 : 0).word(block.num_keys);
  to.word(block.first_bucket).word(block.end_bucket);
}

RecordBlock read_block(WordReader& from) {
  RecordBlock block;
  block.offset = from.word();
  block.num_bytes = from.word();
  block.crc32 = static_cast<std::uint32_t>(from.word_up_to(kMost32, "a checksum"));
  block.are_pending = from.word_up_to(1, "the kind of a block") == 1;
  block.num_keys = from.word();
  block.first_bucket = static_cast<std::uint32_t>(from.word_up_to(kMost32, "a bucket"));
  block.end_bucket = static_cast<std::uint32_t>(from.word_up_to(kMost32, "a bucket"));
  return block;
}

std::string read_path(WordReader& from) { return from.text(kMostPathBytes, "the length of a path"); }

}  // namespace

Body encode_save(SaveArgs const& save) {
  WordWriter to;
  to.word(save.step).word(save.end).text(save.path);
  return to.take();
}

SaveArgs decode_save(std::span<std::byte const> body) {
  WordReader from(body);
  SaveArgs save;
  save.step = from.word();
  save.end = from.word();
  save.path = read_path(from);
  from.expect_end();
  return save;
}

Body encode_saved(std::span<SavedTable const> tables) {
  WordWriter to;
  to.word(tables.size());
  for (auto const& table : tables) {
    to.word(table.dim).word(table.state_size).word(table.blocks.size());
    for (auto const& block : table.blocks) write_block(to, block);
  }
  return to.take();
}

std::vector<SavedTable> decode_saved(std::span<std::byte const> body) {
  WordReader from(body);
  std::vector<SavedTable> tables;
  auto const count = from.word_up_to(kMostMergedTables, "the number of merged tables");
  for (std::uint64_t i = 0; i < count; ++i) {
    SavedTable table;
    table.dim = from.word();
    table.state_size = from.word();
    auto const num_blocks = from.word_up_to(kMostBlocks, "the number of blocks");
    for (std::uint64_t block = 0; block < num_blocks; ++block) table.blocks.push_back(read_block(from));
    tables.push_back(std::move(table));
  }
  from.expect_end();
  return tables;
}

Body encode_load(LoadArgs const& load) {
  WordWriter to;
  to.word(load.step).word(load.index).word(load.count).word(load.tables.size());
  for (auto const& table : load.tables) {
    to.word(table.table_ids.size()).array(std::span<std::uint32_t const>(table.table_ids));
    to.word(table.initial_state ? 1 : 0).real(table.initial_state.value_or(0));
  }
  to.word(load.sources.size());
  for (auto const& source : load.sources) {
    to.text(source.path);
    write_block(to, source.block);
    to.word(source.dim).word(source.state_size);
  }
  return to.take();
}

LoadArgs decode_load(std::span<std::byte const> body) {
  WordReader from(body);
  LoadArgs load;
  load.step = from.word();
  load.index = static_cast<std::uint32_t>(from.word_up_to(kMost32, "the number of a server"));
  load.count = static_cast<std::uint32_t>(from.word_up_to(kMost32, "the number of servers"));
  auto const num_tables = from.word_up_to(kMostMergedTables, "the number of merged tables");
  for (std::uint64_t i = 0; i < num_tables; ++i) {
    auto const ids = from.array<std::uint32_t>(from.word_up_to(kMostTables, "the number of tables"));
    LoadedTable table{.table_ids = {ids.begin(), ids.end()}, .initial_state = {}};
    bool const has_state = from.word_up_to(1, "the kind of a state") == 1;
    auto const state = static_cast<float>(from.real());
    if (has_state) table.initial_state = state;
    load.tables.push_back(std::move(table));
  }
  auto const num_sources = from.word_up_to(kMostBlocks, "the number of blocks");
  for (std::uint64_t i = 0; i < num_sources; ++i) {
    embedding::RecordSource source;
    source.path = read_path(from);
    source.block = read_block(from);
    source.dim = from.word();
    source.state_size = from.word();
    load.sources.push_back(std::move(source));
  }
  from.expect_end();
  return load;
}

Body encode_evicted(std::span<std::uint64_t const> evicted) {
  WordWriter to;
  to.word(evicted.size()).array(evicted);
  return to.take();
}

std::vector<std::uint64_t> decode_evicted(std::span<std::byte const> body) {
  WordReader from(body);
  auto const evicted = from.array<std::uint64_t>(from.word_up_to(kMostMergedTables, "the number of merged tables"));
  std::vector<std::uint64_t> result(evicted.begin(), evicted.end());
  from.expect_end();
  return result;
}

}  // namespace headway::hybrid
