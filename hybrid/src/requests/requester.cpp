// SPDX-License-Identifier: Apache-2.0

// The end of a link that asks.
//
// Idea: a request posts the receive of its answer at once, with its own sequence number as `match`, so answers come in
// any order. One thread at a time *leads*: it looks at all answers that are coming, posts the receive of a large body
// as soon as its first message is there, and sleeps until something comes. A thread that waits for an answer leads if
// nobody does. While nobody waits, a thread of the requester leads, so answers that are wanted later come meanwhile.
//
// Example: a trainer sends lookups 1 and 2, and computes. The requester's thread finds the first message of answer 1
// and asks for its body, then those of answer 2. When the trainer waits for answer 1, it is there.
//
// Invariants: memory of an answer lives until its receives are done, also if nobody wants it any more. An answer that
// is never taken would fill the peer's slots otherwise. Only who leads uses `coming_` and the receives in it.
// Complexity: a message each way, more if a body exceeds kInlineBytes (frame.hpp). While answers are coming the
// requester's thread wakes up once in kTick.

#include "headway/hybrid/requests.hpp"
#include "requests/frame.hpp"
#include "requests/requester_impl.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace headway::hybrid {

namespace {

using std::chrono::milliseconds;

/// Longest answer in bytes. A larger one is a mistake of the peer.
constexpr std::uint64_t kMostReplyBytes = std::uint64_t{1} << 32;
/// Time after which a wait calls WhileWaiting.
constexpr milliseconds kBetweenCalls(100);
/// Time after which a leader looks at all answers again. An answer that overtakes another one waits so long at most.
constexpr milliseconds kTick(1);
/// Questions of a new requester. The fastest answer tells the round trip; the first ones also wake threads up.
constexpr int kFirstQuestions = 3;
/// The requester's thread goes to sleep once no answer was coming for so long.
constexpr milliseconds kIdle(50);

}  // namespace

comm::GroupOptions request_link_options(comm::GroupOptions options) {
  options.timeout = comm::kLongestTimeout;
  options.message_slot_bytes = kMessageSlotBytes;
  return options;
}

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
    case ReplyCode::kLeaving:
      return "leaving";
  }
  return "unknown";
}

namespace {

/// An answer that is coming.
struct CallState {
  std::uint64_t seq = 0;
  Incoming incoming;  ///< The leader uses it, until the answer is complete.
  std::atomic<bool> is_complete = false;
};

class LinkRequester final : public Requester::Impl {
 public:
  explicit LinkRequester(std::unique_ptr<comm::Group> link) : link_(std::move(link)) {
    thread_ = std::thread([this] { run(); });
  }
  ~LinkRequester() override {
    {
      std::lock_guard const lock(mutex_);
      is_ending_ = true;
    }
    may_lead_.notify_all();
    thread_.join();
  }
  LinkRequester(LinkRequester const&) = delete;
  LinkRequester& operator=(LinkRequester const&) = delete;
  [[nodiscard]] comm::Group* link() override { return link_.get(); }
  /// Call it before other threads ask.
  void set_round_trip(std::chrono::microseconds round_trip) {
    most_piece_bytes_ = most_piece_bytes(*link_, round_trip);
  }

  Requester::CallPtr start(std::shared_ptr<Impl> const& self, std::uint64_t kind, std::uint64_t incarnation,
                           RequestArgs request) override {
    auto state = std::make_shared<CallState>();
    bool is_thread_asleep = false;
    {
      std::lock_guard const lock(mutex_);  // Sequence numbers leave in order.
      state->seq = next_seq_++;
      state->incoming.post(*link_, reply_match(state->seq));
      begun_.push_back(state);
      sends_.send(*link_,
                  {.seq = state->seq,
                   .generation = request.generation,
                   .incarnation = incarnation,
                   .kind = kind,
                   .answer_piece_bytes = most_piece_bytes_},
                  std::move(request.body), kRequestMatch, request_rest_match(state->seq), most_piece_bytes_);
      is_thread_asleep = std::exchange(is_thread_asleep_, false);
    }
    if (is_thread_asleep) may_lead_.notify_all();
    return std::make_shared<LinkCall>(std::move(state), std::static_pointer_cast<LinkRequester>(self));
  }

  /// See Requester::Call::wait_for().
  bool wait_for(CallState& state, milliseconds timeout) {
    auto const until = comm::deadline_after(timeout);
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    auto const leave = [&](bool result) {
      if (--num_waiting_ == 0) may_lead_.notify_all();
      return result;
    };
    for (;;) {
      if (state.is_complete) return leave(true);
      auto const left = std::chrono::ceil<milliseconds>(until - comm::Clock::now());
      bool const is_over = left <= milliseconds(0);
      if (has_leader_) {
        if (is_over) return leave(false);
        changed_.wait_for(lock, left);
        continue;
      }
      try {
        lead(lock, is_over ? milliseconds(0) : std::min(left, kTick), &state);
      } catch (...) {
        leave(false);
        throw;
      }
      if (is_over) return leave(state.is_complete);
    }
  }

 private:
  class LinkCall final : public Requester::Call {
   public:
    LinkCall(std::shared_ptr<CallState> state, std::shared_ptr<LinkRequester> requester)
        : state_(std::move(state)), requester_(std::move(requester)) {}

    bool wait_for(milliseconds timeout) override { return requester_->wait_for(*state_, timeout); }
    Reply take() override {
      auto& incoming = state_->incoming;
      return {.code = static_cast<ReplyCode>(incoming.frame.header.kind), .body = std::move(incoming.body)};
    }

   private:
    std::shared_ptr<CallState> state_;
    std::shared_ptr<LinkRequester> requester_;
  };

  /// Leads while nobody waits.
  void run() noexcept {
    std::unique_lock lock(mutex_);
    auto idle_since = comm::Clock::now();
    while (!is_ending_) {
      if (!is_idle_) {
        idle_since = comm::Clock::now();
      } else if (begun_.empty() && comm::Clock::now() - idle_since > kIdle) {
        is_thread_asleep_ = true;
        may_lead_.wait(lock, [this] { return !is_thread_asleep_ || is_ending_; });
        is_thread_asleep_ = false;
        idle_since = comm::Clock::now();
      }
      // After a failure those that wait find it.
      if (num_waiting_ > 0 || has_leader_ || has_failed_ || (is_idle_ && begun_.empty())) {
        may_lead_.wait_for(lock, kIdle);
        continue;
      }
      try {
        lead(lock, kTick, nullptr);
      } catch (std::exception const&) {
        has_failed_ = true;
      }
    }
  }

  /// Looks at all answers that are coming, and waits up to `limit` if there is nothing new. `lock` is open meanwhile.
  /// @param wanted answer whose message is waited for; null: that of the oldest
  void lead(std::unique_lock<std::mutex>& lock, milliseconds limit, CallState* wanted) {
    has_leader_ = true;
    coming_.splice(coming_.end(), begun_);
    lock.unlock();
    std::exception_ptr error;
    try {
      bool const has_news = std::erase_if(coming_, [this](auto const& each) { return advance(*each); }) > 0;
      if (!has_news && limit > milliseconds(0) && !coming_.empty()) {
        (wanted == nullptr ? *coming_.front() : *wanted).incoming.wait(*link_, limit);
      }
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    has_leader_ = false;
    is_idle_ = coming_.empty();
    changed_.notify_all();
    if (error) std::rethrow_exception(error);
  }

  /// Goes on with an answer. @returns whether it is complete
  bool advance(CallState& state) {
    auto& incoming = state.incoming;
    while (incoming.test(*link_)) {
      if (!incoming.has_frame) {
        expect_header(state);
        if (incoming.take_frame(*link_, reply_rest_match(state.seq))) continue;
      }
      state.is_complete = true;
      return true;
    }
    return false;
  }

  void expect_header(CallState const& state) {
    auto const& header = state.incoming.frame.header;
    if (header.seq == state.seq && header.body_bytes <= kMostReplyBytes && state.incoming.has_valid_pieces() &&
        header.kind <= static_cast<std::uint64_t>(ReplyCode::kLeaving)) {
      return;
    }
    link_->admin().abort("an answer to request " + std::to_string(state.seq) + " has a wrong header");
    throw base::OperationError({base::StatusCode::kAborted, "an answer has a wrong header"});
  }

  std::size_t most_piece_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;   ///< For those that wait: a leader has ended.
  std::condition_variable may_lead_;  ///< For thread_: nobody waits any more, or a request has begun.
  // Guarded by mutex_:
  std::uint64_t next_seq_ = 1;
  std::list<std::shared_ptr<CallState>> begun_;  ///< Answers that no leader has seen yet.
  std::size_t num_waiting_ = 0;                  ///< Threads in wait_for().
  bool has_leader_ = false, is_idle_ = true, has_failed_ = false, is_ending_ = false;
  bool is_thread_asleep_ = false;  ///< Until start() wakes it up.

  std::list<std::shared_ptr<CallState>> coming_;  ///< Only the leader uses it.
  SendList sends_;
  std::unique_ptr<comm::Group> link_;  ///< Destroyed first: it ends operations that use memory of the others.
  std::thread thread_;
};

}  // namespace

Requester::Requester(std::unique_ptr<comm::Group> link, milliseconds timeout,
                     std::optional<std::chrono::microseconds> round_trip) {
  base::expects(link->size() == 2, "a link has two ends");
  std::shared_ptr<LinkRequester> const requester(new LinkRequester(std::move(link)),
                                                 [process = ::getpid()](LinkRequester* each) {
                                                   // A forked child does not have the thread, and the end of a
                                                   // condition variable waits for those that use it. So it leaks its
                                                   // copy.
                                                   if (::getpid() == process) delete each;
                                                 });
  impl_ = requester;
  auto shortest = std::chrono::microseconds::max();
  for (int i = 0; i < (round_trip ? 1 : kFirstQuestions); ++i) {
    auto const begin = comm::Clock::now();
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
    shortest = std::min(shortest, std::chrono::duration_cast<std::chrono::microseconds>(comm::Clock::now() - begin));
  }
  requester->set_round_trip(round_trip.value_or(shortest));
}

Requester::Requester(RequestHandler handler) : impl_(make_local_requester(std::move(handler))), incarnation_(1) {}

Requester::~Requester() = default;

comm::Group* Requester::link() { return impl_->link(); }

Requester::CallPtr Requester::start(RequestArgs request) {
  auto const kind = request.kind;
  return impl_->start(impl_, kind, incarnation_, std::move(request));
}

bool Requester::test(Call& call) { return call.wait_for(milliseconds(0)); }

std::optional<Reply> Requester::wait(Call& call, milliseconds timeout) {
  if (!call.wait_for(timeout)) return std::nullopt;
  base::expects(!std::exchange(call.is_taken, true), "the answer was taken before");
  return call.take();
}

Body Requester::await(Call& call, milliseconds timeout, std::string const& missing, WhileWaiting const& while_waiting) {
  auto const until = comm::deadline_after(timeout);
  for (;;) {
    auto const left = std::chrono::ceil<milliseconds>(until - comm::Clock::now());
    auto reply = wait(call, std::clamp(left, milliseconds(1), kBetweenCalls));
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
