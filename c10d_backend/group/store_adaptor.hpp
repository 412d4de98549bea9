// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <headway/comm/status.hpp>
#include <headway/comm/store.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace headway::c10d_backend {

/// Presents a store of torch.distributed as a comm::Store. A store of torch.distributed has one time limit for all
/// calls; get() here takes one for each call. get() throws comm::SystemError if the key is still missing when that time
/// has passed, or if the store fails.
class StoreAdaptor final : public comm::Store {
 public:
  explicit StoreAdaptor(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(std::string const& key, std::string_view value) override;
  std::string get(std::string const& key, std::chrono::milliseconds timeout) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

inline void StoreAdaptor::set(std::string const& key, std::string_view value) {
  store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

// Polls check() instead of calling wait(): c10d logs a warning each time wait() times out, and libcomm waits in short
// slices to notice Ctrl-C.
inline std::string StoreAdaptor::get(std::string const& key, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongestPause{50};
  auto const deadline = std::chrono::steady_clock::now() + timeout;
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    try {
      if (store_->check({key})) {
        auto const value = store_->get(key);
        return {value.begin(), value.end()};
      }
    } catch (c10::Error const& error) {
      throw comm::SystemError("the rendezvous store does not give '" + key + "': " + error.what_without_backtrace());
    }
    auto const left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::steady_clock::duration::zero()) {
      throw comm::SystemError("no value for '" + key + "' in the rendezvous store within " +
                              std::to_string(timeout.count()) + " ms");
    }
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(pause, left));
  }
}

}  // namespace headway::c10d_backend
