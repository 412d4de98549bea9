// SPDX-License-Identifier: Apache-2.0

// Requests to a handler of the same process.
//
// Idea: start() calls the handler on the caller's thread. So there is no message, no other thread to wake up, and no
// copy: bodies are moved. A handler that keeps the request answers it later, on the thread of another request.
//
// Example: a trainer looks up step 1, which the server keeps. The trainer sends the gradients of step 0. Within that
// call the server applies them and answers the lookup, whose rows are there when the trainer waits.
//
// Invariants: a call is answered once. It lives as long as the request or the asker needs it.
// Complexity: a call of the handler, and one lock.

#include "requests/origin.hpp"
#include "requests/requester_impl.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

namespace headway::hybrid {

namespace {

using std::chrono::milliseconds;

class LocalCall final : public Requester::Call, public Request::Origin {
 public:
  void reply(Request::Description const& /*request*/, ReplyCode code, Body body) override {
    std::lock_guard const lock(mutex_);
    reply_.emplace(Reply{.code = code, .body = std::move(body)});
    is_answered_.notify_all();
  }
  bool wait_for(milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    return is_answered_.wait_for(lock, timeout, [this] { return reply_.has_value(); });
  }
  Reply take() override {
    std::lock_guard const lock(mutex_);
    return {.code = reply_->code, .body = std::move(reply_->body)};
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_answered_;
  std::optional<Reply> reply_;  ///< Guarded by mutex_.
};

class LocalRequester final : public Requester::Impl {
 public:
  explicit LocalRequester(RequestHandler handler) : handler_(std::move(handler)) {}

  Requester::CallPtr start(std::shared_ptr<Impl> const& /*self*/, std::uint64_t /*kind*/, std::uint64_t /*incarnation*/,
                           RequestArgs args) override {
    auto call = std::make_shared<LocalCall>();
    Request request({.kind = args.kind, .generation = args.generation, .seq = next_seq_++}, std::move(args.body), call);
    call_handler(handler_, request);
    return call;
  }
  comm::Group* link() override { return nullptr; }

 private:
  RequestHandler const handler_;
  std::atomic<std::uint64_t> next_seq_ = 1;
};

}  // namespace

std::shared_ptr<Requester::Impl> make_local_requester(RequestHandler handler) {
  return std::make_shared<LocalRequester>(std::move(handler));
}

}  // namespace headway::hybrid
