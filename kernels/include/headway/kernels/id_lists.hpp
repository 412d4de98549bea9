// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::kernels {

/// Form of encoded lists of ids; id_lists.cpp has an example of each.
enum class IdForm : std::uint8_t {
  kPlain,      ///< Lengths and ids of 64 bits.
  kPacked,     ///< Both in as few bits as they need.
  kPositions,  ///< Unique ids, and for each id of a list the position of its unique id.
  kSamples,    ///< Unique ids, and for each of them the samples (indices of lists) that hold it.
};

/// Jagged lists of ids: list i has lengths[i] ids.
struct IdLists {
  std::vector<std::int64_t> lengths{}, ids{};
};

/// Appends the lists in the form that is the smallest for them. Lossless: the order of ids is kept, too. It takes at
/// most a byte more than lengths and ids of 64 bits. Lengths that do not add up to the ids are encoded as they are.
/// @returns the form
/// @throws base::UsageError for 2^32 lists or ids, or more
IdForm append_id_lists(std::span<std::int64_t const> lengths, std::span<std::int64_t const> ids,
                       std::vector<std::byte>& to);

/// Decodes lists from the front of `bytes`, which may be hostile.
/// @param num_lists, num_ids sizes, which the message has in front; the caller limits them
/// @returns the bytes behind
/// @throws base::UsageError for bytes that no lists of these sizes encode to
[[nodiscard]] std::span<std::byte const> decode_id_lists(std::span<std::byte const> bytes, std::size_t num_lists,
                                                         std::size_t num_ids, IdLists& lists);

}  // namespace headway::kernels
