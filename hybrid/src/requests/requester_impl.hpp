// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/hybrid/requests.hpp"

#include <chrono>
#include <cstdint>
#include <memory>

namespace headway::hybrid {

class Requester::Call {
 public:
  Call() = default;
  virtual ~Call() = default;
  Call(Call const&) = delete;
  Call& operator=(Call const&) = delete;

  /// Waits for the answer up to `timeout`. 0: only looks. @returns whether it is complete
  [[nodiscard]] virtual bool wait_for(std::chrono::milliseconds timeout) = 0;
  /// Moves the answer out. It is complete.
  [[nodiscard]] virtual Reply take() = 0;

  bool is_taken = false;
};

class Requester::Impl {
 public:
  Impl() = default;
  virtual ~Impl() = default;
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  /// @param self this object, which the call may share
  [[nodiscard]] virtual CallPtr start(std::shared_ptr<Impl> const& self, std::uint64_t kind, std::uint64_t incarnation,
                                      RequestArgs request) = 0;
  [[nodiscard]] virtual comm::Group* link() = 0;
};

/// The way to a handler of this process.
[[nodiscard]] std::shared_ptr<Requester::Impl> make_local_requester(RequestHandler handler);

}  // namespace headway::hybrid
