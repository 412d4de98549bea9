#include "store_adaptor.hpp"

#include <headway/comm/status.hpp>

#include <vector>

namespace headway::c10d_backend {

void StoreAdaptor::set(std::string const& key, std::string_view value) {
  store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

std::string StoreAdaptor::get(std::string const& key, std::chrono::milliseconds timeout) {
  try {
    store_->wait({key}, timeout);
    auto const value = store_->get(key);
    return {value.begin(), value.end()};
  } catch (c10::Error const& error) {
    throw comm::SystemError("no value for '" + key + "' in the rendezvous store within " +
                            std::to_string(timeout.count()) + " ms: " + error.what_without_backtrace());
  }
}

}  // namespace headway::c10d_backend
