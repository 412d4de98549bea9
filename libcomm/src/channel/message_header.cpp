// SPDX-License-Identifier: Apache-2.0
#include "channel/message_header.hpp"

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

std::string text_of(DataType type, DataTypeName name) {
  return name == nullptr ? "type " + std::to_string(type) : name(type);
}

}  // namespace headway::comm
