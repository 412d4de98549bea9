// SPDX-License-Identifier: Apache-2.0

// The end of a link that answers.
//
// Idea: a thread receives requests, with their bodies, and calls the handler for one after the other. The handler keeps
// requests that it cannot answer yet, so the thread always goes on to the next one. Therefore a gradient never waits
// behind a lookup that waits for it. Bodies of the requests behind one travel at the same time, up to the limit of
// bytes that a single body may have.
//
// Example: a handler gets a lookup of step 5, keeps it, gets the gradient of step 4, applies it, and answers the lookup
// on the same thread.
//
// Invariants: sequence numbers grow by one, so a peer cannot have a request done twice. A request is answered once,
// also if the handler forgets it. An answer's memory lives until it has left.
// Complexity: a thread for each link, which sleeps between requests. While a body is on its way it wakes up once in
// kTick.

#include "headway/hybrid/requests.hpp"
#include "requests/frame.hpp"
#include "requests/origin.hpp"

#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace headway::hybrid {

namespace {

/// The link of requests. Requests that were kept may outlive the responder.
class LinkOrigin final : public Request::Origin {
 public:
  LinkOrigin(std::unique_ptr<comm::Group> link, ResponderOptions const& options)
      : options_(options), link_(std::move(link)) {}

  [[nodiscard]] comm::Group& link() { return *link_; }

  void reply(Request::Description const& request, ReplyCode code, Body body) override {
    if (options_.traffic != nullptr) options_.traffic->count_answer(request.kind, message_bytes(body.size()));
    FrameHeader const header{.seq = request.seq,
                             .generation = request.generation,
                             .incarnation = options_.incarnation,
                             .kind = static_cast<std::uint64_t>(code)};
    try {
      if (sends_.num_bytes() > options_.max_unsent_bytes) {
        link_->admin().abort("the peer does not take its answers: over " + std::to_string(options_.max_unsent_bytes) +
                             " bytes wait for it");
      }
      sends_.send(*link_, header, std::move(body), reply_match(request.seq), reply_rest_match(request.seq),
                  request.answer_piece_bytes);
    } catch (std::exception const&) {  // The link has failed, so nobody waits for the answer.
    }
  }

 private:
  ResponderOptions const options_;
  SendList sends_;
  std::unique_ptr<comm::Group> link_;  ///< Destroyed first: it ends operations that use memory of the others.
};

}  // namespace

void call_handler(RequestHandler const& handler, Request& request) {
  try {
    handler(request);
  } catch (base::UsageError const& error) {
    if (!request.is_answered()) request.refuse(ReplyCode::kBadRequest, error.what());
  } catch (std::exception const& error) {
    if (!request.is_answered()) request.refuse(ReplyCode::kFailed, error.what());
  }
}

void RequestTraffic::count_request(std::uint64_t kind, std::size_t num_bytes) {
  auto& of_kind = of_kinds_[index_of(kind)];
  of_kind.num_requests.fetch_add(1, std::memory_order_relaxed);
  of_kind.bytes_received.fetch_add(num_bytes, std::memory_order_relaxed);
}

void RequestTraffic::count_answer(std::uint64_t kind, std::size_t num_bytes) {
  of_kinds_[index_of(kind)].bytes_sent.fetch_add(num_bytes, std::memory_order_relaxed);
}

RequestTraffic::Counts RequestTraffic::of(std::uint32_t kind) const {
  auto const& of_kind = of_kinds_[index_of(kind)];
  return {.num_requests = of_kind.num_requests.load(std::memory_order_relaxed),
          .bytes_received = of_kind.bytes_received.load(std::memory_order_relaxed),
          .bytes_sent = of_kind.bytes_sent.load(std::memory_order_relaxed)};
}

Request::Request(Description const& description, Body body, std::shared_ptr<Origin> origin)
    : description_(description), body_(std::move(body)), origin_(std::move(origin)) {}

Request::~Request() {
  if (origin_ != nullptr) refuse(ReplyCode::kFailed, "the request was dropped");
}

void Request::reply(Body body) {
  base::expects(origin_ != nullptr, "a request is answered once");
  std::exchange(origin_, nullptr)->reply(description_, ReplyCode::kOk, std::move(body));
  body_ = {};
}

void Request::refuse(ReplyCode code, std::string_view text) {
  base::expects(origin_ != nullptr && code != ReplyCode::kOk, "a request is answered once");
  auto const bytes = std::as_bytes(std::span(text));
  std::exchange(origin_, nullptr)->reply(description_, code, {bytes.begin(), bytes.end()});
  body_ = {};
}

class Responder::Impl {
 public:
  Impl(std::unique_ptr<comm::Group> link, ResponderOptions const& options, Handler handler)
      : options_(options),
        handler_(std::move(handler)),
        origin_(std::make_shared<LinkOrigin>(std::move(link), options)) {
    base::expects(options.incarnation != 0, "an incarnation is not 0");
    base::expects(origin_->link().size() == 2, "a link has two ends");
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    origin_->link().admin().leave("the responder has ended");
    thread_.join();
  }
  Impl(Impl const&) = delete;
  Impl& operator=(Impl const&) = delete;

  [[nodiscard]] std::optional<std::string> why() const {
    std::lock_guard const lock(mutex_);
    return why_;
  }

 private:
  void run() noexcept {
    std::string reason;
    try {
      for (;;) serve_one();
    } catch (std::exception const& error) {
      reason = error.what();
    }
    origin_->link().admin().leave(reason);
    std::lock_guard const lock(mutex_);
    why_ = reason;
  }

  /// Receives a request and hands it to the handler. @throws std::exception when the link has ended
  void serve_one() {
    while (coming_.size() < kAhead) coming_.emplace_back().post(origin_->link(), kRequestMatch);
    while (!take_bodies()) {
      // Only a first message may be long in coming: then no other one has come, as they come in order.
      auto& oldest = coming_.front();
      auto const limit = oldest.has_frame ? std::optional(kTick) : std::nullopt;
      oldest.wait(origin_->link(), limit);
    }
    auto incoming = std::move(coming_.front());
    coming_.pop_front();
    bytes_coming_ -= incoming.body.size();
    answer(incoming);
  }

  /// Posts the receives of the bodies whose first messages have come. @returns whether the oldest request is complete
  bool take_bodies() {
    auto& link = origin_->link();
    for (auto& each : coming_) {
      if (!each.test(link)) {
        if (!each.has_frame) break;
        continue;
      }
      if (each.has_frame || each.is_complete) {
        each.is_complete = true;
        continue;
      }
      auto const& header = each.frame.header;
      if (header.seq != next_seq_)
        end("request " + std::to_string(header.seq) + " came instead of request " + std::to_string(next_seq_));
      if (header.body_bytes > options_.max_body_bytes) {
        end("request " + std::to_string(header.seq) + " announces " + std::to_string(header.body_bytes) +
            " bytes, and at most " + std::to_string(options_.max_body_bytes) + " are allowed");
      }
      if (!each.has_valid_pieces()) end("request " + std::to_string(header.seq) + " has pieces that exceed its body");
      if (bytes_coming_ > 0 && bytes_coming_ + header.body_bytes > options_.max_body_bytes) break;
      ++next_seq_;
      bytes_coming_ += header.body_bytes;
      each.is_complete = !each.take_frame(link, request_rest_match(header.seq));
    }
    return coming_.front().is_complete;
  }

  void answer(Incoming& incoming) {
    auto const& header = incoming.frame.header;
    auto const kind = static_cast<std::uint32_t>(header.kind);
    if (options_.traffic != nullptr) options_.traffic->count_request(header.kind, message_bytes(incoming.body.size()));
    auto const most_in_pieces = kMostPieces * origin_->link().options().message_slot_bytes;
    Request request({.kind = kind,
                     .generation = header.generation,
                     .seq = header.seq,
                     .answer_piece_bytes = std::min<std::size_t>(header.answer_piece_bytes, most_in_pieces)},
                    std::move(incoming.body), origin_);
    if (header.kind == kAskIncarnation) {
      auto const bytes = std::as_bytes(std::span(&options_.incarnation, 1));
      return request.reply({bytes.begin(), bytes.end()});
    }
    if (header.incarnation != options_.incarnation) {
      return request.refuse(ReplyCode::kOldIncarnation, "the request means an earlier life of the server");
    }
    if (header.kind > kAskIncarnation) return request.refuse(ReplyCode::kBadRequest, "the kind has over 32 bits");
    call_handler(handler_, request);
  }

  [[noreturn]] void end(std::string const& reason) {
    origin_->link().admin().abort(reason);
    throw base::OperationError({base::StatusCode::kAborted, reason});
  }

  static constexpr std::size_t kAhead = 4;  ///< Requests whose messages may come at the same time.
  static constexpr std::chrono::milliseconds kTick{1};

  ResponderOptions const options_;
  Handler const handler_;
  std::deque<Incoming> coming_{};  ///< In order.
  std::size_t bytes_coming_ = 0;   ///< Bodies in coming_.
  std::uint64_t next_seq_ = 1;
  std::shared_ptr<LinkOrigin> origin_;
  mutable std::mutex mutex_;
  std::optional<std::string> why_;  ///< Guarded by mutex_.
  std::thread thread_;
};

Responder::Responder(std::unique_ptr<comm::Group> link, ResponderOptions const& options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(link), options, std::move(handler))) {}
Responder::~Responder() = default;
bool Responder::has_ended() const { return impl_->why().has_value(); }
std::string Responder::why() const { return impl_->why().value_or(""); }

}  // namespace headway::hybrid
