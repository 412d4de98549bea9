// SPDX-License-Identifier: Apache-2.0

// Lists of ids in the smallest of four forms.
//
// Idea: few ids are most of a batch, so each unique id is written once. Each occurrence is a position among the unique
// ids, or each unique id has the samples that hold it. All numbers are packed (packed_numbers.cpp): indices of up to
// 65,536 samples have at most 16 bits, and those of larger batches have more. The sizes of all forms follow from the
// number of unique ids, so the smallest one is known before anything is written.
//
// Example: lists [70, 30], [] and [70].
//   kPlain       lengths 2 0 1; ids 70 30 70
//   kPacked      the same, each of 2 and 6 bits
//   kPositions   lengths 2 0 1; unique ids 70 30; positions 0 1 0
//   kSamples     unique ids 70 30; samples 0 2. 0.    (a bit marks the last sample of an id)
//
// Invariants: unique ids are in the order of their first occurrence. kSamples has no order of the ids of a list, so it
// is taken only if positions do not fall within a list: then the order of unique ids restores it. Decoding gives what
// was encoded, or throws; it reads within the message and writes within the sizes that the caller has allowed.
// Complexity: O(lists + ids) expected; a hash table of 4 bytes for each of at least 2 ids.
// Source: Lian et al., Persia (arXiv 2111.05897), section 4.2.3 has kSamples with 16 bits for each sample.

#include "headway/kernels/id_lists.hpp"

#include "headway/base/status.hpp"
#include "headway/kernels/packed_numbers.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

namespace headway::kernels {

namespace {

constexpr std::size_t kMost32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kNumForms = 4;

struct UniqueIds {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> positions;  ///< (occurrences) In `ids`.
};

/// Open addressing with linear probes. A slot has a position + 1, or 0 if it is free.
UniqueIds find_unique(std::span<std::int64_t const> ids) {
  UniqueIds unique;
  unique.positions.resize(ids.size());
  std::size_t const num_slots = std::bit_ceil(2 * ids.size() + 1);
  std::vector<std::uint32_t> slots(num_slots);
  int const shift = 64 - std::countr_zero(num_slots);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    constexpr std::uint64_t kFibonacci = 0x9e3779b97f4a7c15;
    auto const id = static_cast<std::uint64_t>(ids[i]);
    std::size_t slot = (id ^ id >> 32) * kFibonacci >> shift;
    while (slots[slot] != 0 && unique.ids[slots[slot] - 1] != ids[i]) slot = (slot + 1) & (num_slots - 1);
    if (slots[slot] == 0) {
      unique.ids.push_back(ids[i]);
      slots[slot] = static_cast<std::uint32_t>(unique.ids.size());
    }
    unique.positions[i] = slots[slot] - 1;
  }
  return unique;
}

/// Do lengths add up to the ids?
bool add_up(std::span<std::int64_t const> lengths, std::size_t num_ids) {
  std::size_t total = 0;
  for (auto const length : lengths) {
    if (length < 0 || static_cast<std::size_t>(length) > num_ids - total) return false;
    total += static_cast<std::size_t>(length);
  }
  return total == num_ids;
}

/// Do the positions of each list never fall?
bool are_ordered(std::span<std::int64_t const> lengths, std::span<std::uint32_t const> positions) {
  for (auto const length : lengths) {
    auto const of_list = positions.first(static_cast<std::size_t>(length));
    if (!std::ranges::is_sorted(of_list)) return false;
    positions = positions.subspan(of_list.size());
  }
  return true;
}

/// Twice the sample of each occurrence, by unique id; 1 more marks the last one of an id.
std::vector<std::uint64_t> marked_samples(std::span<std::int64_t const> lengths, UniqueIds const& unique) {
  std::vector<std::size_t> next(unique.ids.size() + 1);
  for (auto const position : unique.positions) ++next[position + 1];
  for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
  std::vector<std::uint64_t> marked(unique.positions.size());
  std::size_t occurrence = 0;
  for (std::size_t sample = 0; sample < lengths.size(); ++sample) {
    for (std::int64_t i = 0; i < lengths[sample]; ++i) marked[next[unique.positions[occurrence++]]++] = 2 * sample;
  }
  for (std::size_t id = 0; id < unique.ids.size(); ++id) ++marked[next[id] - 1];
  return marked;
}

void append_words(std::span<std::int64_t const> words, std::vector<std::byte>& to) {
  auto const bytes = std::as_bytes(words);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void append_count(std::size_t count, std::vector<std::byte>& to) {
  auto const narrow = static_cast<std::uint32_t>(count);
  auto const bytes = std::as_bytes(std::span(&narrow, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// The front of a message, which gets shorter.
class Front {
 public:
  explicit Front(std::span<std::byte const> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::span<std::byte const> take(std::size_t count) {
    base::expects(count <= bytes_.size(), "lists of ids are cut off");
    auto const taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  void read_words(std::span<std::int64_t> words) {
    base::expects(words.size() <= bytes_.size() / sizeof(std::int64_t), "lists of ids are cut off");
    auto const bytes = take(words.size_bytes());
    if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  }
  template <class Number>
  void read_packed(std::span<Number> numbers) {
    bytes_ = unpack(bytes_, numbers);
  }
  /// A number of unique ids.
  [[nodiscard]] std::size_t read_count(std::size_t num_ids) {
    std::uint32_t count = 0;
    std::memcpy(&count, take(sizeof count).data(), sizeof count);
    base::expects(count <= num_ids, "there are more unique ids than ids");
    return count;
  }
  [[nodiscard]] std::span<std::byte const> rest() const { return bytes_; }

 private:
  std::span<std::byte const> bytes_;
};

void read_positions(Front& from, IdLists& lists) {
  std::vector<std::int64_t> unique(from.read_count(lists.ids.size()));
  std::vector<std::uint32_t> positions(lists.ids.size());
  from.read_packed(std::span(lists.lengths));
  from.read_packed(std::span(unique));
  from.read_packed(std::span(positions));
  base::expects(std::ranges::all_of(positions, [&](auto position) { return position < unique.size(); }),
                "a position is not that of a unique id");
  std::ranges::transform(positions, lists.ids.begin(), [&](auto position) { return unique[position]; });
}

void read_samples(Front& from, IdLists& lists) {
  std::vector<std::int64_t> unique(from.read_count(lists.ids.size()));
  std::vector<std::uint64_t> marked(lists.ids.size());
  from.read_packed(std::span(unique));
  from.read_packed(std::span(marked));
  std::size_t num_marks = 0;
  std::ranges::fill(lists.lengths, 0);
  for (auto const each : marked) {
    base::expects(each / 2 < lists.lengths.size(), "a sample is not that of a list");
    ++lists.lengths[each / 2];
    num_marks += each % 2;
  }
  base::expects(num_marks == unique.size() && (marked.empty() || marked.back() % 2 == 1),
                "there is not one list of samples for each unique id");
  std::vector<std::size_t> next(lists.lengths.size());  // (lists) Where the next id of each is written.
  for (std::size_t i = 1; i < next.size(); ++i) next[i] = next[i - 1] + static_cast<std::size_t>(lists.lengths[i - 1]);
  std::size_t id = 0;
  for (auto const each : marked) {
    lists.ids[next[each / 2]++] = unique[id];
    id += each % 2;
  }
}

}  // namespace

IdForm append_id_lists(std::span<std::int64_t const> lengths, std::span<std::int64_t const> ids,
                       std::vector<std::byte>& to) {
  base::expects(lengths.size() <= kMost32 && ids.size() <= kMost32, "at most 2^32 - 1 lists and ids are allowed");
  auto const unique = find_unique(ids);
  std::size_t const num_unique = unique.ids.size(), last_unique = std::max<std::size_t>(num_unique, 1) - 1;
  std::size_t const last_sample = std::max<std::size_t>(lengths.size(), 1) - 1;
  auto const of_lengths = packing_of(lengths), of_ids = packing_of(ids);
  auto const of_positions = packing_up_to(last_unique), of_samples = packing_up_to(2 * last_sample + 1);
  bool const has_samples = add_up(lengths, ids.size()) && are_ordered(lengths, unique.positions);
  std::size_t const ids_bytes = of_ids.num_bytes(num_unique);
  std::array<std::size_t, kNumForms> const sizes{
      lengths.size_bytes() + ids.size_bytes(), of_lengths.num_bytes(lengths.size()) + of_ids.num_bytes(ids.size()),
      sizeof(std::uint32_t) + of_lengths.num_bytes(lengths.size()) + ids_bytes + of_positions.num_bytes(ids.size()),
      has_samples ? sizeof(std::uint32_t) + ids_bytes + of_samples.num_bytes(ids.size())
                  : std::numeric_limits<std::size_t>::max()};
  auto const form = static_cast<IdForm>(std::ranges::min_element(sizes) - sizes.begin());
  to.push_back(static_cast<std::byte>(form));
  switch (form) {
    case IdForm::kPlain:
      append_words(lengths, to);
      append_words(ids, to);
      break;
    case IdForm::kPacked:
      append_packed(lengths, of_lengths, to);
      append_packed(ids, of_ids, to);
      break;
    case IdForm::kPositions:
      append_count(num_unique, to);
      append_packed(lengths, of_lengths, to);
      append_packed(std::span<std::int64_t const>(unique.ids), of_ids, to);
      append_packed(std::span<std::uint32_t const>(unique.positions), of_positions, to);
      break;
    case IdForm::kSamples:
      append_count(num_unique, to);
      append_packed(std::span<std::int64_t const>(unique.ids), of_ids, to);
      append_packed(std::span<std::uint64_t const>(marked_samples(lengths, unique)), of_samples, to);
      break;
  }
  return form;
}

std::span<std::byte const> decode_id_lists(std::span<std::byte const> bytes, std::size_t num_lists, std::size_t num_ids,
                                           IdLists& lists) {
  base::expects(num_lists <= kMost32 && num_ids <= kMost32, "at most 2^32 - 1 lists and ids are allowed");
  Front from(bytes);
  auto const form = from.take(1)[0];
  base::expects(static_cast<std::size_t>(form) < kNumForms,
                "lists of ids have no form " + std::to_string(static_cast<int>(form)));
  lists.lengths.resize(num_lists);
  lists.ids.resize(num_ids);
  switch (static_cast<IdForm>(form)) {
    case IdForm::kPlain:
      from.read_words(lists.lengths);
      from.read_words(lists.ids);
      break;
    case IdForm::kPacked:
      from.read_packed(std::span(lists.lengths));
      from.read_packed(std::span(lists.ids));
      break;
    case IdForm::kPositions:
      read_positions(from, lists);
      break;
    case IdForm::kSamples:
      read_samples(from, lists);
      break;
  }
  return from.rest();
}

}  // namespace headway::kernels
