#pragma once

#include "meeting.hpp"
#include "message_end.hpp"
#include "put_settings.hpp"

#include <string>
#include <vector>

namespace headway::benchmarks {

/// A system under test as one rank sees it.
struct NamedEnd {
  std::string name;
  MessageEnd& end;
  std::uint64_t num_sent = 0, num_awaited = 0;
};

/// Checks every system, then times them in turns, and prints one point a size and system at rank 0. The last of
/// `systems` is the one that the others are compared with.
void measure_put(PutSettings const& settings, int rank, std::string const& device, std::vector<NamedEnd>& systems,
                 Meeting& meeting);

}  // namespace headway::benchmarks
