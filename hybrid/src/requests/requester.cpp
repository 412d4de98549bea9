// SPDX-License-Identifier: Apache-2.0

// The end of a link that asks.
//
// Idea: a request posts the receive of its answer at once, with its own sequence number as `match`. So a thread waits
// for its own answer only, no thread hands answers out, and answers come in any order.
//
// Invariants: memory of an answer lives until its receives are done, also if nobody wants it any more; the list of such
// answers is looked through at each start(). An answer that is never taken would fill the peer's slots otherwise.
// Complexity: a message each way, two if a body exceeds kInlineBytes.

#include "headway/hybrid/requests.hpp"
#include "requests/frame.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <string>
#include <utility>

namespace headway::hybrid {

namespace {

using std::chrono::milliseconds;

/// Longest answer in bytes. A larger one is a mistake of the peer.
constexpr std::uint64_t kMostReplyBytes = std::uint64_t{1} << 32;
/// Time after which a wait calls WhileWaiting.
constexpr milliseconds kTick(100);

void expect_ok(comm::Operation const& operation) {
  if (auto const status = operation.status(); !status.ok()) throw base::OperationError(status);
}

}  // namespace

std::string_view to_string(ReplyCode code) {
  switch (code) {
    case ReplyCode::kOk:
      return "ok";
    case ReplyCode::kBadRequest:
      return "bad request";
    case ReplyCode::kOldGeneration:
      return "old generation";
    case ReplyCode::kOldIncarnation:
      return "old incarnation";
    case ReplyCode::kFailed:
      return "failed";
  }
  return "unknown";
}

class Requester::Call {
 public:
  /// An answer that is coming. Shared with the list of those that nobody wants.
  struct State {
    std::uint64_t seq = 0;
    std::mutex mutex;  ///< Guards the fields below.
    Incoming incoming;
    bool is_complete = false, is_taken = false;
  };

  Call(std::shared_ptr<State> state, std::shared_ptr<Impl> impl) : state_(std::move(state)), impl_(std::move(impl)) {}
  ~Call();
  Call(Call const&) = delete;
  Call& operator=(Call const&) = delete;
  [[nodiscard]] State& state() { return *state_; }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Impl> impl_;
};

class Requester::Impl {
 public:
  explicit Impl(std::unique_ptr<comm::Group> link) : link_(std::move(link)) {}
  [[nodiscard]] comm::Group& link() { return *link_; }

  CallPtr start(std::shared_ptr<Impl> const& self, std::uint64_t kind, std::uint64_t incarnation, RequestArgs request) {
    forget_unwanted();
    auto state = std::make_shared<Call::State>();
    {
      std::lock_guard const lock(mutex_);  // Sequence numbers leave in order.
      state->seq = next_seq_++;
      state->incoming.post(*link_, reply_match(state->seq));
      sends_.send(*link_,
                  {.seq = state->seq, .generation = request.generation, .incarnation = incarnation, .kind = kind},
                  std::move(request.body), kRequestMatch, request_rest_match(state->seq));
    }
    return std::make_shared<Call>(std::move(state), self);
  }

  /// Waits for the answer up to `timeout`. 0: only looks. @returns whether it is complete
  bool advance(Call::State& state, milliseconds timeout) {
    auto const until = comm::deadline_after(timeout);
    for (;;) {
      comm::OperationPtr receive;
      {
        std::lock_guard const lock(state.mutex);
        if (state.is_complete) return true;
        receive = state.incoming.receive;
      }
      if (timeout == milliseconds(0)) {
        if (!link_->test(*receive)) return false;
      } else {
        auto const left = std::chrono::ceil<milliseconds>(until - comm::Clock::now());
        auto const status = link_->wait(*receive, std::max(left, milliseconds(0)));
        if (!receive->done()) return false;
        if (!status.ok()) throw base::OperationError(status);
      }
      expect_ok(*receive);
      take(state);
    }
  }

  /// An answer that nobody wants is received all the same.
  void abandon(std::shared_ptr<Call::State> state) {
    std::lock_guard const lock(mutex_);
    unwanted_.push_back(std::move(state));
  }

 private:
  /// The receive under way has ended.
  void take(Call::State& state) {
    std::lock_guard const lock(state.mutex);
    auto& incoming = state.incoming;
    if (incoming.has_frame) {
      state.is_complete = true;
      return;
    }
    auto const& header = incoming.frame.header;
    if (header.seq != state.seq || header.body_bytes > kMostReplyBytes ||
        header.kind > static_cast<std::uint64_t>(ReplyCode::kFailed)) {
      link_->admin().abort("an answer to request " + std::to_string(state.seq) + " has a wrong header");
      throw base::OperationError({base::StatusCode::kAborted, "an answer has a wrong header"});
    }
    state.is_complete = !incoming.take_frame(*link_, reply_rest_match(state.seq));
  }

  void forget_unwanted() {
    std::list<std::shared_ptr<Call::State>> looked_at;
    {
      std::lock_guard const lock(mutex_);
      looked_at.swap(unwanted_);
    }
    std::erase_if(looked_at, [this](auto const& each) { return advance(*each, milliseconds(0)); });
    std::lock_guard const lock(mutex_);
    unwanted_.splice(unwanted_.end(), looked_at);
  }

  std::mutex mutex_;
  std::uint64_t next_seq_ = 1;                        ///< Guarded by mutex_.
  std::list<std::shared_ptr<Call::State>> unwanted_;  ///< Guarded by mutex_.
  SendList sends_;
  std::unique_ptr<comm::Group> link_;  ///< Destroyed first: it ends operations that use memory of the others.
};

Requester::Call::~Call() {
  bool is_wanted = false;
  {
    std::lock_guard const lock(state_->mutex);
    is_wanted = state_->is_complete;
  }
  if (!is_wanted) impl_->abandon(std::move(state_));
}

Requester::Requester(std::unique_ptr<comm::Group> link, milliseconds timeout)
    : impl_(std::make_shared<Impl>(std::move(link))) {
  base::expects(impl_->link().size() == 2, "a link has two ends");
  auto const call = impl_->start(impl_, kAskIncarnation, 0, {});
  auto const reply = wait(*call, timeout);
  if (!reply) {
    throw base::OperationError({base::StatusCode::kTimeout, "the peer did not tell its incarnation within " +
                                                                std::to_string(timeout.count()) + " ms"});
  }
  if (reply->code != ReplyCode::kOk || reply->body.size() != sizeof incarnation_) {
    throw base::OperationError({base::StatusCode::kAborted, "the peer did not tell its incarnation"});
  }
  std::memcpy(&incarnation_, reply->body.data(), sizeof incarnation_);
}

Requester::~Requester() = default;

comm::Group& Requester::link() { return impl_->link(); }

Requester::CallPtr Requester::start(RequestArgs request) {
  auto const kind = request.kind;
  return impl_->start(impl_, kind, incarnation_, std::move(request));
}

bool Requester::test(Call& call) { return impl_->advance(call.state(), milliseconds(0)); }

std::optional<Reply> Requester::wait(Call& call, milliseconds timeout) {
  if (!impl_->advance(call.state(), timeout)) return std::nullopt;
  auto& state = call.state();
  std::lock_guard const lock(state.mutex);
  base::expects(!std::exchange(state.is_taken, true), "the answer was taken before");
  auto& incoming = state.incoming;
  return Reply{.code = static_cast<ReplyCode>(incoming.frame.header.kind), .body = std::move(incoming.body)};
}

Body Requester::await(Call& call, milliseconds timeout, std::string const& missing, WhileWaiting const& while_waiting) {
  auto const until = comm::deadline_after(timeout);
  for (;;) {
    auto const left = std::chrono::ceil<milliseconds>(until - comm::Clock::now());
    auto reply = wait(call, std::clamp(left, milliseconds(1), kTick));
    if (reply && reply->code != ReplyCode::kOk) throw RequestRefused(reply->code, std::string(reply->text()));
    if (reply) return std::move(reply->body);
    if (comm::Clock::now() >= until) {
      throw base::OperationError(
          {base::StatusCode::kTimeout, missing + " within " + std::to_string(timeout.count()) + " ms"});
    }
    if (while_waiting) while_waiting();
  }
}

Body Requester::ask(RequestArgs request, milliseconds timeout) {
  auto const missing = "request of kind " + std::to_string(request.kind) + " was not answered";
  return await(*start(std::move(request)), timeout, missing);
}

}  // namespace headway::hybrid
