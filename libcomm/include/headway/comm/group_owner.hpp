// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"

#include <memory>

namespace headway::comm {

/// Interface of an object that has a group, such as the backend of a process group of PyTorch. A library that knows
/// only the object's base class asks for this interface by dynamic_cast, and then makes exchanges that the base class
/// has no call for.
class GroupOwner {
 public:
  GroupOwner() = default;
  GroupOwner(GroupOwner const&) = delete;
  GroupOwner& operator=(GroupOwner const&) = delete;
  virtual ~GroupOwner() = default;

  /// The group. It lives as long as the result. All ranks start their own exchanges and those of the owner in one
  /// order.
  /// @throws std::exception if the owner has shut it down
  [[nodiscard]] virtual std::shared_ptr<Group> shared_group() const = 0;
};

}  // namespace headway::comm
