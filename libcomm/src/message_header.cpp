#include "message_header.hpp"

namespace headway::comm {

char const* verb_name(Verb verb) {
  switch (verb) {
    case Verb::kAllToAll:
      return "all_to_all_v";
    case Verb::kSend:
      return "send";
    case Verb::kBroadcast:
      return "broadcast";
    case Verb::kGather:
      return "gather";
    case Verb::kScatter:
      return "scatter";
    case Verb::kAllGather:
      return "all_gather";
    case Verb::kBarrier:
      return "barrier";
  }
  return "unknown operation";
}

}  // namespace headway::comm
