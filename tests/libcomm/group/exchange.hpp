// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"
#include "test_bytes.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace headway::comm {

/// Bytes followed by a guard, so that a write beyond the end is detected.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size = 0) : size_(size), bytes_(size + kGuardBytes, std::byte{0}) {
    std::memset(bytes_.data() + size, kGuard, kGuardBytes);
  }
  [[nodiscard]] std::span<std::byte> span() { return std::span(bytes_).first(size_); }
  [[nodiscard]] std::span<std::byte const> span() const { return std::span(bytes_).first(size_); }
  [[nodiscard]] bool is_guard_intact() const {
    for (std::size_t at = size_; at < bytes_.size(); ++at) {
      if (bytes_[at] != std::byte{kGuard}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuardBytes = 4096 + 64;
  static constexpr unsigned char kGuard = 0xa5;
  std::size_t size_;
  std::vector<std::byte> bytes_;
};

/// Number of bytes from `source` to `destination` in an exchange.
using SizeOf = std::function<std::size_t(int source, int destination)>;

/// One rank's memory of one all-to-all. The contents identify source, destination and exchange.
class Exchange {
 public:
  /// @param number seed of the contents, equal on all ranks
  /// @param spare bytes by which output blocks exceed what comes; above 0, their sizes are capacities
  Exchange(int rank, int size, std::uint64_t number, SizeOf const& size_of, std::size_t spare = 0)
      : rank_(rank), number_(number), received_bytes_(spare > 0 ? static_cast<std::size_t>(size) : 0) {
    for (int peer = 0; peer < size; ++peer) {
      sources_.push_back(test_bytes(size_of(rank, peer), seed(rank, peer)));
      sizes_.push_back(size_of(peer, rank));
      outputs_.emplace_back(sizes_.back() + spare);
    }
    for (int peer = 0; peer < size; ++peer) {
      sends_.emplace_back(sources_[static_cast<std::size_t>(peer)]);
      receives_.push_back(outputs_[static_cast<std::size_t>(peer)].span());
    }
  }
  Exchange(Exchange const&) = delete;
  Exchange(Exchange&&) = default;
  Exchange& operator=(Exchange const&) = delete;

  /// Starts the exchange. The memory must stay until the operation is done.
  OperationPtr start(Group& group, int channel = 0, DataType type = 1) {
    operation_ = group.all_to_all_v({.sends = sends_,
                                     .receives = receives_,
                                     .data_type = type,
                                     .channel = channel,
                                     .received_bytes = received_bytes_});
    return operation_;
  }

  /// Starts and waits in one call.
  [[nodiscard]] Status run(Group& group) {
    return group.all_to_all_v_and_wait(
        {.sends = sends_, .receives = receives_, .data_type = 1, .received_bytes = received_bytes_});
  }

  [[nodiscard]] OperationPtr const& operation() const { return operation_; }

  /// Waits and checks. @throws OperationError if the operation failed, std::runtime_error if bytes are wrong.
  void finish(Group& group) {
    Status status = group.wait(*operation_);
    if (!status.ok()) throw OperationError(std::move(status));
    check();
  }

  /// Compares all outputs. @throws std::runtime_error if an output differs from its sender's input, or what is behind
  /// it was written to.
  void check() const {
    for (std::size_t peer = 0; peer < outputs_.size(); ++peer) {
      auto expected = test_bytes(sizes_[peer], seed(static_cast<int>(peer), rank_));
      expected.resize(outputs_[peer].span().size());
      if (!received_bytes_.empty() && received_bytes_[peer] != sizes_[peer]) {
        throw std::runtime_error("exchange " + std::to_string(number_) + ": rank " + std::to_string(rank_) + " got " +
                                 std::to_string(received_bytes_[peer]) + " bytes instead of " +
                                 std::to_string(sizes_[peer]));
      }
      if (!same_bytes(outputs_[peer].span(), expected) || !outputs_[peer].is_guard_intact()) {
        throw std::runtime_error("exchange " + std::to_string(number_) + ": rank " + std::to_string(rank_) + " got " +
                                 (outputs_[peer].is_guard_intact() ? "wrong bytes" : "too many bytes") + " from rank " +
                                 std::to_string(peer) + " (" + std::to_string(expected.size()) + " bytes)");
      }
    }
  }

  /// Overwrites the sources, as a caller may do after wait().
  void scribble() {
    for (auto& source : sources_) std::fill(source.begin(), source.end(), std::byte{0xee});
  }

  [[nodiscard]] bool are_guards_intact() const {
    return std::all_of(outputs_.begin(), outputs_.end(), [](auto const& output) { return output.is_guard_intact(); });
  }

 private:
  [[nodiscard]] std::uint64_t seed(int source, int destination) const {
    return number_ << 16 | static_cast<std::uint64_t>(source) << 8 | static_cast<std::uint64_t>(destination);
  }

  int rank_;
  std::uint64_t number_;
  std::vector<std::size_t> received_bytes_;  ///< By peer; empty: sizes of output blocks are exact.
  std::vector<std::size_t> sizes_;           ///< Sizes of the blocks that come.
  std::vector<std::vector<std::byte>> sources_;
  std::vector<GuardedBytes> outputs_;
  std::vector<std::span<std::byte const>> sends_;
  std::vector<std::span<std::byte>> receives_;
  OperationPtr operation_;
};

/// Pseudo-random sizes up to `max_bytes`, many of them zero or small. All ranks compute the same sizes.
inline SizeOf uneven_sizes(std::uint64_t number, std::size_t max_bytes) {
  return [=](int source, int destination) -> std::size_t {
    std::uint64_t const draw =
        (number * 8191 + static_cast<std::uint64_t>(source) * 127 + static_cast<std::uint64_t>(destination) * 31 + 7) *
            0x9e3779b97f4a7c15u >>
        20;
    switch (draw % 4) {
      case 0:
        return 0;
      case 1:
        return draw / 4 % 100;
      default:
        return draw / 4 % (max_bytes + 1);
    }
  };
}

/// The same size for each pair.
inline SizeOf even_sizes(std::size_t bytes) {
  return [=](int, int) { return bytes; };
}

}  // namespace headway::comm
