// SPDX-License-Identifier: Apache-2.0

// Offsets of sync words, stages (in host memory, for small messages) and slots in the memory of a link, the choice of a
// block's route (directly into the output, or through a slot), and the error text for messages that differ.
// layout.hpp has a picture and an example.

#include "device/peer_copy/layout.hpp"

namespace headway::comm::peer_copy {

namespace {

constexpr std::size_t kPageBytes = 4096;

std::string describe(MessageDescriptor const& descriptor, DataTypeName name) {
  return std::to_string(descriptor.size_bytes) + " bytes of " + text_of(descriptor.data_type, name) + " in " +
         verb_name(descriptor.verb) + " " + std::to_string(descriptor.match);
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::string disagreement(DataTypeName name, int sender, MessageDescriptor const& sent, int receiver,
                         MessageDescriptor const& expected) {
  return "rank " + std::to_string(sender) + " sends " + describe(sent, name) + " to rank " + std::to_string(receiver) +
         ", which expects " + describe(expected, name);
}

// One compare-and-swap per message: the first caller for `seq` writes the word, the second reads it.
Route RouteChoice::choose(std::uint64_t seq, Route own) {
  // The word holds (seq + 1) * 2 + route. A word of an older message is smaller, so it never looks like a choice for
  // this one. The words of a link are a ring, indexed by seq.
  auto seen = word_.load();
  while (seen / kNumRoutes != seq + 1) {
    if (word_.compare_exchange_weak(seen, (seq + 1) * kNumRoutes + static_cast<std::uint64_t>(own))) return own;
  }
  return static_cast<Route>(seen % kNumRoutes);
}

void LinkLayout::add_channel(std::size_t slot_bytes, std::uint64_t num_slots) {
  channels.push_back({.slot_bytes = slot_bytes,
                      .num_slots = num_slots,
                      .sync_offset = host_bytes,
                      .slots_offset = device_bytes,
                      .slot_stride = slot_bytes});
  host_bytes = round_up(host_bytes + sizeof(SyncWords) + num_slots * kStageBytes, kPageBytes);
  device_bytes += num_slots * slot_bytes;
}

LinkLayout LinkLayout::of_shared_slots(std::size_t block_bytes, std::uint64_t num_slots, int size) {
  LinkLayout layout;
  layout.source_stride = block_bytes;
  layout.host_bytes = round_up(sizeof(SyncWords), kPageBytes);
  layout.channels.push_back(
      {.slot_bytes = block_bytes, .num_slots = num_slots, .slot_stride = block_bytes * static_cast<std::size_t>(size)});
  layout.device_bytes = num_slots * layout.channels.front().slot_stride;
  return layout;
}

}  // namespace headway::comm::peer_copy
