// SPDX-License-Identifier: Apache-2.0

// Fields of the agreement: every setting that must be equal on all ranks, as text. The handshake compares the texts,
// so a new setting is checked by adding one line here. A difference is reported as "slot_bytes is 65536 at rank 0 and
// 32768 at rank 1".

#include "bootstrap/control_socket.hpp"
#include "bootstrap/handshake.hpp"

#include <bit>
#include <string>
#include <vector>

namespace headway::comm {
namespace {

std::string name_of(Transport transport) {
  switch (transport) {
    case Transport::kAuto:
      return "auto";
    case Transport::kInproc:
      return "inproc";
    case Transport::kShm:
      return "shm";
    case Transport::kTcp:
      return "tcp";
    case Transport::kVerbs:
      return "verbs";
  }
  return "transport " + std::to_string(static_cast<int>(transport));
}

}  // namespace

std::vector<AgreementField> fields_of(Agreement const& agreement) {
  GroupOptions const& options = *agreement.options;
  // -1 means "as max_lag". The ranks must agree on the number that results, not on how it was written.
  int const max_lag_limit = options.max_lag_limit < 0 ? options.max_lag : options.max_lag_limit;
  return {
      {"protocol_version", std::to_string(kProtocolVersion)},
      {"byte_order", std::endian::native == std::endian::little ? "little" : "big"},
      {"size", std::to_string(agreement.size)},
      {"name", options.name},
      {"transport", name_of(options.transport)},
      {"max_lag_limit", std::to_string(max_lag_limit)},
      {"adapt_lag", options.adapt_lag ? "true" : "false"},
      {"slot_bytes", std::to_string(options.slot_bytes)},
      {"message_slot_bytes", std::to_string(options.message_slot_bytes)},
      {"num_channels", std::to_string(options.num_channels)},
      {"allow_get", options.allow_get ? "true" : "false"},
      {"rdma_rails", std::to_string(options.rdma_rails)},
      {"receive_buffer_bytes", std::to_string(agreement.receive_buffer_bytes)},
      {"wrap_checked", options.wrap_checked ? "true" : "false"},
      {"fault_seed", std::to_string(options.fault_seed)},
  };
}

}  // namespace headway::comm
