// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/comm/group.hpp"
#include "headway/hybrid/body.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Requests over a link (comm::dial(), comm::LinkListener): one end asks, the other answers. Many requests are in
// flight, and are answered in any order. Both ends of a link have options of request_link_options().
//
//   Requester server(comm::dial("ps-0.ps:7000", request_link_options(options)));
//   auto const first = server.start({.kind = 3, .generation = 7, .body = body});
//   auto const second = server.start(...);
//   Reply const reply = server.wait(*second, 5s);
//
// A server of the same process needs no link: Requester server([&](Request& request) { parameters.handle(request); });

namespace headway::hybrid {

/// Options of links for requests: as given, but without a time limit of operations, since a responder always waits for
/// the next request, and with slots that hold pieces of bodies. Requests have time limits of their own.
[[nodiscard]] comm::GroupOptions request_link_options(comm::GroupOptions options);

/// How a request ended.
enum class ReplyCode : std::uint32_t {
  kOk,
  kBadRequest,      ///< The request makes no sense; the server goes on.
  kOldGeneration,   ///< It belongs to a generation that has ended.
  kOldIncarnation,  ///< It means an earlier life of the server.
  kFailed,          ///< The server could not do it.
  kLeaving,         ///< The responder ends soon, and takes no new work.
};
[[nodiscard]] std::string_view to_string(ReplyCode code);

/// An answer. If the code is not kOk, the body is a text.
struct Reply {
  ReplyCode code = ReplyCode::kOk;
  Body body{};

  [[nodiscard]] std::string_view text() const { return {reinterpret_cast<char const*>(body.data()), body.size()}; }
};

/// The responder's answer was not kOk.
class RequestRefused : public std::runtime_error {
 public:
  RequestRefused(ReplyCode code, std::string const& text) : std::runtime_error(text), code_(code) {}
  [[nodiscard]] ReplyCode code() const { return code_; }

 private:
  ReplyCode code_;
};

/// Calls `call`. Texts of the errors that requests throw begin with `name`.
template <class Call>
auto with_name(std::string const& name, Call&& call) {
  try {
    return call();
  } catch (base::OperationError const& error) {
    throw base::OperationError({error.status().code(), name + ": " + error.what()});
  } catch (RequestRefused const& refused) {
    throw RequestRefused(refused.code(), name + ": " + refused.what());
  }
}

/// A request to send.
struct RequestArgs {
  std::uint32_t kind = 0;        ///< Meaning of the body, which the two ends agree on.
  std::uint64_t generation = 0;  ///< Formation of the dense workers that it belongs to.
  Body body{};
};

class Request;
/// Answers a request, or moves it elsewhere and answers later. If it throws, the text is the answer: base::UsageError
/// as kBadRequest, others as kFailed.
using RequestHandler = std::function<void(Request& request)>;

/// The end of a link that asks. Thread-safe.
class Requester {
 public:
  /// A request that was sent. If it is destroyed before it is answered, its answer is dropped.
  class Call;
  using CallPtr = std::shared_ptr<Call>;

  /// Asks the responder for its incarnation.
  /// @param timeout for that answer
  /// @param round_trip of the link, which tells how bodies are cut (requests/frame.hpp); without it it is measured
  /// @throws base::OperationError if the link fails or the timeout passes
  Requester(std::unique_ptr<comm::Group> link, std::chrono::milliseconds timeout,
            std::optional<std::chrono::microseconds> round_trip = std::nullopt);
  /// Asks a handler of this process, without a link: start() calls it on the caller's thread, and bodies are moved.
  explicit Requester(RequestHandler handler);
  ~Requester();
  Requester(Requester const&) = delete;
  Requester& operator=(Requester const&) = delete;

  /// Random number of the responder's life. It is in every request, and a responder refuses those of another life.
  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }
  /// Null: there is none.
  [[nodiscard]] comm::Group* link();

  /// Sends a request. Does not wait.
  /// @throws base::OperationError if the link has failed
  [[nodiscard]] CallPtr start(RequestArgs request);
  /// Has the answer come? Does not wait. @throws base::OperationError if the link has failed
  [[nodiscard]] bool test(Call& call);
  /// Waits for an answer, which is moved out. Call it once, from one thread, for each call.
  /// @returns nothing when the timeout passes first; the call goes on
  /// @throws base::OperationError if the link has failed
  [[nodiscard]] std::optional<Reply> wait(Call& call, std::chrono::milliseconds timeout);
  /// Called about every 100 ms in a wait; its exceptions pass through.
  using WhileWaiting = std::function<void()>;
  /// Waits for an answer, which is kOk.
  /// @param missing for the error: what has not come
  /// @throws RequestRefused if it is not; base::OperationError if the link has failed, or at the timeout
  [[nodiscard]] Body await(Call& call, std::chrono::milliseconds timeout, std::string const& missing,
                           WhileWaiting const& while_waiting = {});
  /// start() and wait().
  /// @throws RequestRefused if the answer is not kOk; base::OperationError if the link has failed, or with kTimeout
  [[nodiscard]] Body ask(RequestArgs request, std::chrono::milliseconds timeout);

  class Impl;  // The way to the responder.

 private:
  std::shared_ptr<Impl> impl_;  ///< Calls share it.
  std::uint64_t incarnation_ = 0;
};

/// Bytes of requests and their answers as they travel, by the kind of the request. Thread-safe.
class RequestTraffic {
 public:
  static constexpr std::size_t kMostKinds = 32;  ///< Larger kinds count as 0.
  struct Counts {
    std::uint64_t num_requests = 0, bytes_received = 0, bytes_sent = 0;
  };

  void count_request(std::uint64_t kind, std::size_t num_bytes);
  void count_answer(std::uint64_t kind, std::size_t num_bytes);
  [[nodiscard]] Counts of(std::uint32_t kind) const;

 private:
  struct Atomics {
    std::atomic<std::uint64_t> num_requests{0}, bytes_received{0}, bytes_sent{0};
  };
  [[nodiscard]] static std::size_t index_of(std::uint64_t kind) { return kind < kMostKinds ? kind : 0; }

  std::array<Atomics, kMostKinds> of_kinds_{};
};

/// A request that came. If it is destroyed before reply(), the peer gets kFailed.
class Request {
 public:
  class Origin;  // It takes the answer.
  /// Facts that its answer needs.
  struct Description {
    std::uint32_t kind = 0;
    std::uint64_t generation = 0, seq = 0;
    std::size_t answer_piece_bytes = 0;  ///< Bytes of the answer that may go in pieces.
  };

  Request(Description const& description, Body body, std::shared_ptr<Origin> origin);
  ~Request();
  Request(Request&&) noexcept = default;  // The other one then counts as answered.
  Request& operator=(Request&&) = delete;

  [[nodiscard]] bool is_answered() const { return origin_ == nullptr; }
  [[nodiscard]] std::uint32_t kind() const { return description_.kind; }
  [[nodiscard]] std::uint64_t generation() const { return description_.generation; }
  [[nodiscard]] std::span<std::byte const> body() const { return body_; }
  /// Moves the body out. Views of it stay valid; body() is empty.
  [[nodiscard]] Body take_body() { return std::exchange(body_, {}); }
  /// Answers, from any thread, once. Does nothing if the link has failed. The body is freed.
  void reply(Body body);
  /// @param code not kOk
  void refuse(ReplyCode code, std::string_view text);

 private:
  Description description_;
  Body body_;
  std::shared_ptr<Origin> origin_;  ///< Null once it was answered.
};

struct ResponderOptions {
  std::uint64_t incarnation = 0;  ///< Not 0.
  /// Largest body in bytes. A link that announces a larger one is ended.
  std::size_t max_body_bytes = std::size_t{256} << 20;
  /// Answers in bytes that may wait for a peer that does not take them. Beyond it the link is ended.
  std::size_t max_unsent_bytes = std::size_t{1} << 30;
  std::shared_ptr<RequestTraffic> traffic{};  ///< Counts bytes; none: nobody does.
};

/// The end of a link that answers. Each responder has a thread, which receives one request after the other.
class Responder {
 public:
  /// Called on the responder's thread. It may move the request elsewhere, so that it delays no other.
  using Handler = RequestHandler;

  Responder(std::unique_ptr<comm::Group> link, ResponderOptions const& options, Handler handler);
  /// Ends the link, and waits for the handler.
  ~Responder();
  Responder(Responder const&) = delete;
  Responder& operator=(Responder const&) = delete;

  /// Has the link ended? Then why() tells the reason.
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] std::string why() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway::hybrid
