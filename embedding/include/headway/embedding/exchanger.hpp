// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/cuda_place.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::embedding {

/// How the ranks of a ShardedTable exchange bytes: over a group of libcomm (GroupExchanger), a process group of PyTorch
/// (embedding/torch), or not at all (one rank). Calls are collective: all ranks make the same ones in the same order.
/// Blocks are in the memory of the table's BatchDevice. On a CUDA device an exchange is ordered after the work of the
/// caller's stream.
class Exchanger {
 public:
  /// A started all-to-all. If it is destroyed before it is done it goes on, and keeps its memory meanwhile.
  class Exchange {
   public:
    virtual ~Exchange() = default;
    /// Blocks until all blocks have arrived and those that were sent may be written again. On a CUDA device the
    /// caller's stream waits instead of the host.
    /// @throws base::OperationError if a rank was lost, or the timeout of the group has expired
    virtual void wait() = 0;
    /// Would wait() return at once? Does not wait.
    [[nodiscard]] virtual bool is_done() = 0;
    /// CUDA only: this stream waits for the exchange.
    virtual void wait_on(CudaStream stream);
  };

  virtual ~Exchanger() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Are blocks in the memory of a CUDA device allowed?
  [[nodiscard]] virtual bool takes_device_memory() const { return false; }
  /// Does start() take `received_bytes`? If not, send() and receive() are not called either.
  [[nodiscard]] virtual bool takes_capacities() const = 0;
  /// Starts to send sends[r] to rank r and to receive receives[r] from it. Does not wait. The blocks belong to the
  /// exchange until it is done; the spans of blocks only during the call.
  /// @param memory owns the blocks and `received_bytes`; kept until the exchange is done
  /// @param sends, receives (size) block for, and from, each rank; sizes agree between sender and receiver. Without
  ///   `received_bytes`, the blocks lie one after the other in memory.
  /// @param received_bytes (size) if given, `receives` are capacities, and it gets the bytes that came, by wait()
  [[nodiscard]] virtual std::unique_ptr<Exchange> start(std::span<std::span<std::byte const> const> sends,
                                                        std::span<std::span<std::byte> const> receives,
                                                        std::shared_ptr<void const> memory,
                                                        std::span<std::size_t> received_bytes = {}) = 0;
  /// Starts to send a block to one rank, which calls receive() with the same size and `number` (the message's tag).
  [[nodiscard]] virtual std::unique_ptr<Exchange> send(std::span<std::byte const> block, int peer, std::uint64_t number,
                                                       std::shared_ptr<void const> memory) = 0;
  [[nodiscard]] virtual std::unique_ptr<Exchange> receive(std::span<std::byte> block, int peer, std::uint64_t number,
                                                          std::shared_ptr<void const> memory) = 0;
  /// Sends a text to all ranks. Waits. The default uses start() in host memory.
  /// @returns (size) the texts of all ranks
  [[nodiscard]] virtual std::vector<std::string> all_gather(std::string const& text);
};

/// An exchanger of a single rank, which copies its block.
[[nodiscard]] std::unique_ptr<Exchanger> make_local_exchanger();

}  // namespace headway::embedding
