#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace headway::embedding {

/// UniqueKeys in memory of a device that the caller gives. How many there are only the device knows: of `ids`,
/// `tables`, `counts` and `begins` so many are set. Of keys beyond Keys::num_known neither numbers nor members hold.
struct CudaUniqueKeys {
  std::span<std::uint64_t> ids{};      ///< (keys)
  std::span<std::uint32_t> tables{};   ///< (keys); empty where the batch has one for all.
  std::uint32_t table = 0;             ///< Then it must be that of the batch.
  std::span<std::uint32_t> counts{};   ///< (keys)
  std::span<std::uint32_t> numbers{};  ///< (keys)
  std::span<std::uint32_t> members{};  ///< (keys)
  std::span<std::uint32_t> begins{};   ///< (keys + 1)
  std::uint32_t* size = nullptr;

  [[nodiscard]] Keys keys() const {
    return {.ids = ids, .tables = tables, .table = table, .counts = counts, .are_unique = true, .num_known = size};
  }
};

/// Does on a device what Deduplicator does: keys, bags and values are in its memory, and offsets of bags are not
/// checked. Nothing waits for the device. The results do not depend on the run; long sums are taken in pieces of a
/// fixed number of members, so that they differ by rounding from those of the host.
class CudaDeduplicator {
 public:
  CudaDeduplicator() = default;
  CudaDeduplicator(CudaDeduplicator const&) = delete;
  CudaDeduplicator& operator=(CudaDeduplicator const&) = delete;
  virtual ~CudaDeduplicator() = default;

  /// @param keys `are_unique` is not looked at
  /// @throws comm::UsageError if there are 2^31 keys or more, or sizes do not agree; likewise below
  virtual void deduplicate(Keys const& keys, CudaUniqueKeys const& unique) = 0;
  /// The keys of a batch as if all of them were different.
  virtual void take_as_unique(Keys const& keys, CudaUniqueKeys const& unique) = 0;
  /// What reorder() does; `order` is not checked.
  /// @param order (unique keys or more)
  /// @param reordered in other memory than `unique`
  virtual void reorder(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
                       CudaUniqueKeys const& reordered) = 0;
  /// Gives each bag the sum of what its known keys have. Without offsets bags of keys that are not known may not be
  /// set.
  /// @param values (unique keys or more, dim)
  /// @param out (bags, dim)
  virtual void hand_out(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
                        std::span<float> out) = 0;
  /// Adds up for each unique key what the bags of its keys have.
  /// @param values (bags, dim)
  /// @param sums (unique keys or more, dim); what is beyond them is not set
  virtual void add_up(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
                      std::span<float> sums) = 0;
  /// The keys of a batch by the ranks that own them, as route() has it; last those that are not known, for no rank.
  /// @param order (keys)
  /// @param counts (ranks)
  virtual void route(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts) = 0;
};

/// @throws comm::SystemError if CUDA refuses; comm::UsageError if this build has no CUDA
[[nodiscard]] std::unique_ptr<CudaDeduplicator> make_cuda_deduplicator(CudaPlace const& place);

}  // namespace headway::embedding
