#pragma once

#include "torch_headers.hpp"

#include <headway/comm/store.hpp>

#include <chrono>
#include <string>
#include <string_view>

namespace headway::c10d_backend {

/// Presents a store of torch.distributed as a comm::Store.
class StoreAdaptor final : public comm::Store {
 public:
  explicit StoreAdaptor(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(std::string const& key, std::string_view value) override;
  std::string get(std::string const& key, std::chrono::milliseconds timeout) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace headway::c10d_backend
