#include "rendezvous/agreement.hpp"

#include <bit>

namespace headway::comm {
namespace {

std::string name_of(Engine engine) {
  switch (engine) {
    case Engine::kAuto:
      return "auto";
    case Engine::kInproc:
      return "inproc";
    case Engine::kShm:
      return "shm";
    case Engine::kTcp:
      return "tcp";
    case Engine::kVerbs:
      return "verbs";
  }
  return "engine " + std::to_string(static_cast<int>(engine));
}

}  // namespace

std::vector<AgreementField> fields_of(Agreement const& agreement) {
  GroupOptions const& options = *agreement.options;
  int const max_lag_limit = options.max_lag_limit < 0 ? options.max_lag : options.max_lag_limit;
  return {
      {"protocol_version", std::to_string(kProtocolVersion)},
      {"byte_order", std::endian::native == std::endian::little ? "little" : "big"},
      {"size", std::to_string(agreement.size)},
      {"name", options.name},
      {"engine", name_of(options.engine)},
      {"max_lag_limit", std::to_string(max_lag_limit)},
      {"adapt_lag", options.adapt_lag ? "true" : "false"},
      {"slot_bytes", std::to_string(options.slot_bytes)},
      {"num_channels", std::to_string(options.num_channels)},
      {"allow_pull", options.allow_pull ? "true" : "false"},
      {"rdma_rails", std::to_string(options.rdma_rails)},
      {"landing_bytes", std::to_string(agreement.landing_bytes)},
      {"wrap_checked", options.wrap_checked ? "true" : "false"},
      {"fault_seed", std::to_string(options.fault_seed)},
      {"mutant", options.mutant},
  };
}

}  // namespace headway::comm
