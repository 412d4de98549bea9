// SPDX-License-Identifier: Apache-2.0

#include "headway/hybrid/request_service.hpp"

#include "headway/base/log.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/link.hpp"

#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace headway::hybrid {

namespace {

/// Time after which ended links are forgotten, and after which the accepting thread sees that it has to stop.
constexpr std::chrono::milliseconds kTick(200);

std::uint64_t draw_incarnation() {
  std::random_device device;
  std::uint64_t drawn = 0;
  while (drawn == 0) drawn = std::uint64_t{device()} << 32 | device();
  return drawn;
}

}  // namespace

class RequestService::Impl {
 public:
  Impl(RequestServiceOptions options, Responder::Handler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        incarnation_(draw_incarnation()),
        listener_(options_.address, request_link_options(options_.link)),
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
  [[nodiscard]] RequestTraffic const& traffic() const { return *traffic_; }
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
        link->admin().abort("there are " + std::to_string(kMostLinks) + " links, and no more are taken");
        continue;
      }
      try {
        links_.push_back(std::make_unique<Responder>(
            std::move(link),
            ResponderOptions{
                .incarnation = incarnation_, .max_body_bytes = options_.max_body_bytes, .traffic = traffic_},
            handler_));
      } catch (std::exception const& error) {
        base::log(base::LogLevel::kWarning, "hybrid", 0, std::string("a link was not served: ") + error.what());
      }
    }
  }

  RequestServiceOptions const options_;
  Responder::Handler const handler_;
  std::uint64_t const incarnation_;
  std::shared_ptr<RequestTraffic> const traffic_ = std::make_shared<RequestTraffic>();
  comm::LinkListener listener_;
  mutable std::mutex mutex_;
  std::list<std::unique_ptr<Responder>> links_;  ///< Guarded by mutex_.
  std::jthread acceptor_;
};

RequestService::RequestService(RequestServiceOptions options, Responder::Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {}
RequestService::~RequestService() = default;
std::string const& RequestService::address() const { return impl_->listener().address(); }
std::uint64_t RequestService::incarnation() const { return impl_->incarnation(); }
RequestTraffic const& RequestService::traffic() const { return impl_->traffic(); }
std::size_t RequestService::num_links() const { return impl_->num_links(); }

}  // namespace headway::hybrid
