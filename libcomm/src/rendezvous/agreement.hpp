#pragma once

#include "rendezvous/handshake.hpp"
#include "rendezvous/lifeline.hpp"

#include <vector>

namespace headway::comm {

/// Fields that the handshake compares: protocol version, byte order, and every setting that all ranks must share.
[[nodiscard]] std::vector<AgreementField> fields_of(Agreement const& agreement);

}  // namespace headway::comm
