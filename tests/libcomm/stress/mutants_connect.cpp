// The library with planted faults is built without engines for processes, which connect() would need.

#include "headway/comm/group.hpp"

namespace headway::comm {

std::unique_ptr<Group> Group::connect(int /*rank*/, int /*size*/, Store& /*store*/, GroupOptions /*options*/) {
  throw UsageError("the library with planted faults makes no connections");
}

}  // namespace headway::comm
