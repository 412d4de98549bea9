// SPDX-License-Identifier: Apache-2.0

#include "headway/hybrid/server_service.hpp"

#include "headway/base/log.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/link.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace headway::hybrid {

namespace {

/// Time after which ended links are forgotten, and after which the accepting thread sees that it has to stop.
constexpr std::chrono::milliseconds kTick(200);
/// Each link has a thread.
constexpr std::size_t kMostLinks = 1024;

comm::GroupOptions link_options(comm::GroupOptions options) {
  options.timeout = comm::kLongestTimeout;  // A receive for the next request is always pending.
  return options;
}

/// Gradients of a batch are about as large as its rows, and have to fit a request.
ParameterServerOptions with_answer_limit(ParameterServerOptions options, std::size_t max_body_bytes) {
  constexpr std::size_t kHeader = 64 << 10;
  options.max_rows_bytes = std::min(options.max_rows_bytes, max_body_bytes - std::min(kHeader, max_body_bytes / 2));
  return options;
}

}  // namespace

std::uint64_t draw_incarnation() {
  std::random_device device;
  std::uint64_t drawn = 0;
  while (drawn == 0) drawn = std::uint64_t{device()} << 32 | device();
  return drawn;
}

class ServerService::Impl {
 public:
  explicit Impl(ServerServiceOptions options)
      : options_(std::move(options)),
        incarnation_(draw_incarnation()),
        server_(with_answer_limit(options_.server, options_.max_body_bytes)),
        listener_(options_.address, link_options(options_.link)),
        acceptor_([this](std::stop_token const& stop) { run(stop); }) {}
  ~Impl() {
    listener_.close();
    acceptor_.request_stop();
    acceptor_.join();
  }
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  [[nodiscard]] comm::LinkListener const& listener() const { return listener_; }
  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }
  [[nodiscard]] ParameterServer const& server() const { return server_; }
  [[nodiscard]] std::size_t num_links() const {
    std::lock_guard const lock(mutex_);
    return links_.size();
  }

 private:
  void run(std::stop_token const& stop) {
    while (!stop.stop_requested()) {
      auto link = listener_.accept(kTick);
      std::lock_guard const lock(mutex_);
      std::erase_if(links_, [](auto const& each) {
        if (!each->has_ended()) return false;
        base::log(base::LogLevel::kInfo, "hybrid", 0, "a link has ended: " + each->why());
        return true;
      });
      if (link == nullptr) continue;
      if (links_.size() >= kMostLinks) {
        link->admin().abort("the server has " + std::to_string(kMostLinks) + " links, and takes no more");
        continue;
      }
      try {
        links_.push_back(std::make_unique<Responder>(
            std::move(link), ResponderOptions{.incarnation = incarnation_, .max_body_bytes = options_.max_body_bytes},
            [this](Request& request) { server_.handle(request); }));
      } catch (std::exception const& error) {
        base::log(base::LogLevel::kWarning, "hybrid", 0, std::string("a link was not served: ") + error.what());
      }
    }
  }

  ServerServiceOptions const options_;
  std::uint64_t const incarnation_;
  ParameterServer server_;
  comm::LinkListener listener_;
  mutable std::mutex mutex_;
  std::list<std::unique_ptr<Responder>> links_;  ///< Guarded by mutex_.
  std::jthread acceptor_;
};

ServerService::ServerService(ServerServiceOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
ServerService::~ServerService() = default;
std::string const& ServerService::address() const { return impl_->listener().address(); }
std::uint64_t ServerService::incarnation() const { return impl_->incarnation(); }
ServerStatus ServerService::status() const { return impl_->server().status(); }
std::size_t ServerService::num_links() const { return impl_->num_links(); }

}  // namespace headway::hybrid
