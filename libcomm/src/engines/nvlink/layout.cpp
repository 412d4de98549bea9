#include "engines/nvlink/layout.hpp"

namespace headway::comm::nvlink {

namespace {

constexpr std::size_t kPageBytes = 4096;

std::string describe(MessageMeaning const& meaning, DataTypeName name) {
  return std::to_string(meaning.size_bytes) + " bytes of " + text_of(meaning.data_type, name) + " in " +
         verb_name(meaning.verb) + " " + std::to_string(meaning.match);
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::string disagreement(DataTypeName name, int sender, MessageMeaning const& sent, int receiver,
                         MessageMeaning const& expected) {
  return "rank " + std::to_string(sender) + " sends " + describe(sent, name) + " to rank " + std::to_string(receiver) +
         ", which expects " + describe(expected, name);
}

// One compare-and-swap per message: the first caller for `number` writes the word, the second reads it.
Way Placement::choose(std::uint64_t number, Way own) {
  auto seen = word_.load();
  while (seen / kNumWays != number + 1) {
    if (word_.compare_exchange_weak(seen, (number + 1) * kNumWays + static_cast<std::uint64_t>(own))) return own;
  }
  return static_cast<Way>(seen % kNumWays);
}

void LinkLayout::add_channel(std::size_t slot_bytes, std::uint64_t num_slots) {
  channels.push_back({.slot_bytes = slot_bytes,
                      .num_slots = num_slots,
                      .board_offset = host_bytes,
                      .slots_offset = device_bytes,
                      .slot_stride = slot_bytes});
  host_bytes = round_up(host_bytes + sizeof(Board) + num_slots * kStageBytes, kPageBytes);
  device_bytes += num_slots * slot_bytes;
}

LinkLayout LinkLayout::of_shared_slots(std::size_t block_bytes, std::uint64_t num_slots, int size) {
  LinkLayout layout;
  layout.source_stride = block_bytes;
  layout.host_bytes = round_up(sizeof(Board), kPageBytes);
  layout.channels.push_back(
      {.slot_bytes = block_bytes, .num_slots = num_slots, .slot_stride = block_bytes * static_cast<std::size_t>(size)});
  layout.device_bytes = num_slots * layout.channels.front().slot_stride;
  return layout;
}

}  // namespace headway::comm::nvlink
