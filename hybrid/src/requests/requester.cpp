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

class Requester::Call {
 public:
  /// An answer that is coming.
  struct State {
    std::uint64_t seq = 0;
    Incoming incoming;  ///< The leader uses it, until the answer is complete.
    std::atomic<bool> is_complete = false;
    bool is_taken = false;
  };

  Call(std::shared_ptr<State> state, std::shared_ptr<Impl> impl) : state_(std::move(state)), impl_(std::move(impl)) {}
  [[nodiscard]] State& state() { return *state_; }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Impl> impl_;
};

class Requester::Impl {
 public:
  explicit Impl(std::unique_ptr<comm::Group> link) : link_(std::move(link)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    {
      std::lock_guard const lock(mutex_);
      is_ending_ = true;
    }
    may_lead_.notify_all();
    thread_.join();
  }
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;
  [[nodiscard]] comm::Group& link() { return *link_; }
  /// Call it before other threads ask.
  void set_round_trip(std::chrono::microseconds round_trip) {
    most_piece_bytes_ = most_piece_bytes(*link_, round_trip);
  }

  CallPtr start(std::shared_ptr<Impl> const& self, std::uint64_t kind, std::uint64_t incarnation, RequestArgs request) {
    auto state = std::make_shared<Call::State>();
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
    return std::make_shared<Call>(std::move(state), self);
  }

  /// Waits for the answer up to `timeout`. 0: only looks. @returns whether it is complete
  bool wait_for(Call::State& state, milliseconds timeout) {
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
  void lead(std::unique_lock<std::mutex>& lock, milliseconds limit, Call::State* wanted) {
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
  bool advance(Call::State& state) {
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

  void expect_header(Call::State const& state) {
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
  std::list<std::shared_ptr<Call::State>> begun_;  ///< Answers that no leader has seen yet.
  std::size_t num_waiting_ = 0;                    ///< Threads in wait_for().
  bool has_leader_ = false, is_idle_ = true, has_failed_ = false, is_ending_ = false;
  bool is_thread_asleep_ = false;  ///< Until start() wakes it up.

  std::list<std::shared_ptr<Call::State>> coming_;  ///< Only the leader uses it.
  SendList sends_;
  std::unique_ptr<comm::Group> link_;  ///< Destroyed first: it ends operations that use memory of the others.
  std::thread thread_;
};

Requester::Requester(std::unique_ptr<comm::Group> link, milliseconds timeout,
                     std::optional<std::chrono::microseconds> round_trip)
    : impl_(new Impl(std::move(link)), [process = ::getpid()](Impl* impl) {
        // A forked child does not have the thread, and the end of a condition variable waits for those that use it. So
        // it leaks its copy.
        if (::getpid() == process) delete impl;
      }) {
  base::expects(impl_->link().size() == 2, "a link has two ends");
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
  impl_->set_round_trip(round_trip.value_or(shortest));
}

Requester::~Requester() = default;

comm::Group& Requester::link() { return impl_->link(); }

Requester::CallPtr Requester::start(RequestArgs request) {
  auto const kind = request.kind;
  return impl_->start(impl_, kind, incarnation_, std::move(request));
}

bool Requester::test(Call& call) { return impl_->wait_for(call.state(), milliseconds(0)); }

std::optional<Reply> Requester::wait(Call& call, milliseconds timeout) {
  if (!impl_->wait_for(call.state(), timeout)) return std::nullopt;
  auto& state = call.state();
  base::expects(!std::exchange(state.is_taken, true), "the answer was taken before");
  auto& incoming = state.incoming;
  return Reply{.code = static_cast<ReplyCode>(incoming.frame.header.kind), .body = std::move(incoming.body)};
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
