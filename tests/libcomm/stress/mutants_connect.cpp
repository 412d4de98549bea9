// SPDX-License-Identifier: Apache-2.0

// The library with planted faults has no transports for processes. connect() would need them.

#include "headway/comm/group.hpp"

namespace headway::comm {

std::unique_ptr<Group> Group::connect(int /*rank*/, int /*size*/, Store& /*store*/, GroupOptions /*options*/) {
  throw UsageError("the library with planted faults makes no connections");
}

}  // namespace headway::comm
