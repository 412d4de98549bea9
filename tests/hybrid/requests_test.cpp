// SPDX-License-Identifier: Apache-2.0

// Requests over a link: many in flight, answered in any order, each with a time limit of its own.

#include "headway/hybrid/requests.hpp"

#include "requests/frame.hpp"
#include "two_ends.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace headway::hybrid {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong(20);
constexpr std::uint64_t kIncarnation = 77;

Body bytes_of(std::string const& text) {
  auto const bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(std::span<std::byte const> bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

Body pattern(std::size_t size, unsigned seed) {
  Body bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed);
  return bytes;
}

/// A responder with a handler, and its requester.
struct Ends {
  explicit Ends(Responder::Handler handler, std::uint64_t fault_seed = 0, std::size_t max_body_bytes = 1 << 24,
                bool can_get = true, std::optional<std::chrono::microseconds> round_trip = std::nullopt) {
    auto [server, client] = make_two_ends(fault_seed, can_get);
    responder = std::make_unique<Responder>(
        std::move(server), ResponderOptions{.incarnation = kIncarnation, .max_body_bytes = max_body_bytes},
        std::move(handler));
    requester = std::make_unique<Requester>(std::move(client), kLong, round_trip);
  }
  std::unique_ptr<Responder> responder;
  std::unique_ptr<Requester> requester;
};

void echo(Request& request) {
  auto const body = request.body();
  request.reply({body.begin(), body.end()});
}

TEST(Requests, BodiesOfAllSizesComeBack) {
  for (std::uint64_t const seed : {0, 5}) {
    Ends const ends(echo, seed);
    EXPECT_EQ(ends.requester->incarnation(), kIncarnation);
    for (std::size_t const size : {0UL, 1UL, kInlineBytes - 1, kInlineBytes, kInlineBytes + 1, 5000UL, 3'000'000UL}) {
      auto const body = pattern(size, static_cast<unsigned>(size));
      EXPECT_EQ(ends.requester->ask({.kind = 1, .body = body}, kLong), body) << size;
    }
  }
}

TEST(Requests, BodiesInPiecesComeBack) {
  constexpr auto kMost = kInlineBytes + kMostPieces * kMessageSlotBytes;
  for (auto const& [seed, round_trip] :
       {std::pair(0, milliseconds(24)), std::pair(5, milliseconds(24)), std::pair(0, milliseconds(1))}) {
    Ends const ends(echo, static_cast<std::uint64_t>(seed), 1 << 24, false, round_trip);
    std::vector<std::pair<Requester::CallPtr, Body>> calls;
    for (std::size_t const size :
         {kInlineBytes, kInlineBytes + 1, kInlineBytes + kMessageSlotBytes, kInlineBytes + 2 * kMessageSlotBytes + 1,
          kMost, kMost + 1, std::size_t{9'000'000}}) {
      auto body = pattern(size, static_cast<unsigned>(size));
      EXPECT_EQ(ends.requester->ask({.kind = 1, .body = body}, kLong), body) << size;
      calls.emplace_back(ends.requester->start({.kind = 1, .body = body}), std::move(body));
    }
    for (auto const& [call, body] : calls) EXPECT_EQ(ends.requester->await(*call, kLong, "no answer"), body);
  }
}

TEST(Requests, PiecesDoNotWaitForTheirReceiver) {
  auto [server, client] = make_two_ends(0, false);
  auto const body = pattern(1'000'000, 3);
  SendList sends;
  sends.send(*client, {.seq = 1}, body, kRequestMatch, request_rest_match(1), body.size());
  Incoming incoming;  // Nobody looks at the first message before all pieces are there.
  auto const until = comm::deadline_after(kLong);
  while (sends.num_bytes() > 0 && comm::Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(sends.num_bytes(), 0U) << "they wait";
  incoming.post(*server, kRequestMatch);
  while (!incoming.test(*server)) incoming.wait(*server, kLong);
  EXPECT_EQ(incoming.frame.header.piece_bytes, body.size() - kInlineBytes);
  EXPECT_TRUE(incoming.take_frame(*server, request_rest_match(1)));
  while (!incoming.test(*server)) incoming.wait(*server, kLong);
  EXPECT_EQ(incoming.body, body);
}

/// Whether two answers come within a time in which nobody waits for them.
bool answers_come_within(milliseconds time, Body const& body) {
  Ends ends([&](Request& request) { request.reply(body); });
  auto const first = ends.requester->start({.kind = 1}), second = ends.requester->start({.kind = 2});
  std::this_thread::sleep_for(time);
  ends.responder.reset();  // Later than now nothing comes.
  try {
    for (auto const& call : {first, second}) {
      auto const reply = ends.requester->wait(*call, kLong);
      if (!reply.has_value()) return false;
      EXPECT_EQ(reply->body, body);
    }
  } catch (base::OperationError const&) {
    return false;
  }
  EXPECT_THROW(static_cast<void>(ends.requester->ask({.kind = 3}, kLong)), base::OperationError);
  return true;
}

TEST(Requests, AnswersComeWhileNobodyWaits) {
  auto const body = pattern(3'000'000, 9);
  auto const is_soon_enough = [&](milliseconds time) { return answers_come_within(time, body); };
  // A busy host needs longer.
  EXPECT_TRUE(
      std::ranges::any_of(std::vector{milliseconds(100), milliseconds(1000), milliseconds(8000)}, is_soon_enough));
}

TEST(Requests, SeveralThreadsWaitForAnswersInAnyOrder) {
  for (std::uint64_t const seed : {0, 5}) {
    Ends const ends(echo, seed);
    std::vector<std::jthread> threads;
    for (unsigned number = 0; number < 4; ++number) {
      threads.emplace_back([&, number] {
        std::vector<std::pair<Requester::CallPtr, Body>> calls;
        for (unsigned i = 0; i < 20; ++i) {
          auto body = pattern(std::size_t{10} << (i % 12), number * 20 + i);
          calls.emplace_back(ends.requester->start({.kind = 1, .body = body}), std::move(body));
        }
        if (number % 2 == 1) std::ranges::reverse(calls);
        for (auto const& [call, body] : calls) EXPECT_EQ(ends.requester->await(*call, kLong, "no answer"), body);
      });
    }
  }
}

TEST(Requests, BodiesThatComeTogetherStayBelowTheLimitOfOne) {
  Ends const ends(echo, 0, 100'000);
  std::vector<std::pair<Requester::CallPtr, Body>> calls;
  for (unsigned i = 0; i < 12; ++i) {
    auto body = pattern(i % 3 == 0 ? 100'000 : 60'000, i);
    calls.emplace_back(ends.requester->start({.kind = 1, .body = body}), std::move(body));
  }
  for (auto const& [call, body] : calls) EXPECT_EQ(ends.requester->await(*call, kLong, "no answer"), body);
}

TEST(Requests, AreAnsweredInAnyOrder) {
  std::vector<Request> kept;
  Ends const ends([&](Request& request) {
    kept.push_back(std::move(request));
    if (kept.size() < 5) return;
    for (auto each = kept.rbegin(); each != kept.rend(); ++each) {
      each->reply(bytes_of(std::to_string(each->kind()) + "/" + std::to_string(each->generation())));
    }
    kept.clear();
  });
  std::vector<Requester::CallPtr> calls;
  for (std::uint32_t kind = 0; kind < 4; ++kind) {
    calls.push_back(ends.requester->start({.kind = kind, .generation = 10 + kind, .body = pattern(3000, kind)}));
  }
  EXPECT_FALSE(ends.requester->test(*calls[0]));
  EXPECT_FALSE(ends.requester->wait(*calls[1], milliseconds(20)).has_value());
  calls.push_back(ends.requester->start({.kind = 4, .generation = 14, .body = {}}));
  for (std::uint32_t kind = 0; kind < 5; ++kind) {
    auto const reply = ends.requester->wait(*calls[kind], kLong);
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(text_of(reply->body), std::to_string(kind) + "/" + std::to_string(10 + kind));
    EXPECT_THROW(static_cast<void>(ends.requester->wait(*calls[kind], kLong)), base::UsageError) << "taken before";
  }
}

TEST(Requests, ToAHandlerOfTheSameProcessNeedNoLink) {
  std::vector<Request> kept;
  std::byte const* memory = nullptr;
  auto const asker = std::this_thread::get_id();
  Requester requester([&](Request& request) {
    EXPECT_EQ(std::this_thread::get_id(), asker);
    if (request.kind() == 1) return kept.push_back(std::move(request));
    if (request.kind() == 2) throw base::UsageError("no such table");
    for (auto& each : kept) each.reply(bytes_of("generation " + std::to_string(each.generation())));
    kept.clear();
    memory = request.body().data();
    request.reply(request.take_body());
  });
  EXPECT_EQ(requester.link(), nullptr);
  auto const first = requester.start({.kind = 1, .generation = 7, .body = {}});
  EXPECT_FALSE(requester.wait(*first, milliseconds(5)).has_value());
  EXPECT_THROW(static_cast<void>(requester.ask({.kind = 2, .body = {}}, kLong)), RequestRefused);
  auto const echoed = requester.ask({.kind = 3, .body = pattern(5000, 3)}, kLong);
  EXPECT_EQ(echoed, pattern(5000, 3));
  EXPECT_EQ(echoed.data(), memory) << "bodies are moved";
  EXPECT_TRUE(requester.test(*first));
  EXPECT_EQ(text_of(requester.await(*first, kLong, "no answer came")), "generation 7");
  EXPECT_THROW(static_cast<void>(requester.wait(*first, kLong)), base::UsageError) << "taken before";
  auto const dropped = requester.start({.kind = 1, .body = {}});
  kept.clear();
  EXPECT_EQ(requester.wait(*dropped, kLong).value().code, ReplyCode::kFailed);
}

TEST(Requests, OfManyThreadsDoNotMix) {
  Ends const ends(echo, 3);
  std::vector<std::thread> threads;
  std::atomic<int> num_right = 0;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned i = 0; i < 50; ++i) {
        auto const body = pattern(i * 100, thread * 50 + i);
        if (ends.requester->ask({.kind = thread, .body = body}, kLong) == body) ++num_right;
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(num_right, 200);
}

TEST(Requests, AnAnswerThatNobodyWantsDoesNotStopTheOthers) {
  std::vector<Request> kept;
  Ends const ends([&](Request& request) {
    if (request.kind() == 0) return kept.push_back(std::move(request));
    for (auto& each : kept) each.reply(pattern(100'000, 1));
    kept.clear();
    echo(request);
  });
  for (int round = 0; round < 20; ++round) {
    static_cast<void>(ends.requester->start({.kind = 0, .body = {}}));
    static_cast<void>(ends.requester->start({.kind = 0, .body = {}}));
    EXPECT_EQ(ends.requester->ask({.kind = 1, .body = pattern(5000, 2)}, kLong), pattern(5000, 2));
  }
}

TEST(Requests, ErrorsOfTheHandlerAreTheAnswer) {
  Ends const ends([](Request& request) {
    if (request.kind() == 1) throw base::UsageError("no such thing");
    if (request.kind() == 2) throw std::runtime_error("it broke");
    if (request.kind() == 4) request.refuse(ReplyCode::kOldGeneration, "too old");
    if (request.kind() == 3) static_cast<void>(Request(std::move(request)));
  });
  auto const refusal = [&](std::uint32_t kind) -> std::pair<ReplyCode, std::string> {
    try {
      static_cast<void>(ends.requester->ask({.kind = kind, .body = {}}, kLong));
    } catch (RequestRefused const& refused) {
      return {refused.code(), refused.what()};
    }
    return {ReplyCode::kOk, ""};
  };
  EXPECT_EQ(refusal(1), std::pair(ReplyCode::kBadRequest, std::string("no such thing")));
  EXPECT_EQ(refusal(2), std::pair(ReplyCode::kFailed, std::string("it broke")));
  EXPECT_EQ(refusal(3), std::pair(ReplyCode::kFailed, std::string("the request was dropped")));
  EXPECT_EQ(refusal(4), std::pair(ReplyCode::kOldGeneration, std::string("too old")));
  EXPECT_EQ(refusal(5), std::pair(ReplyCode::kFailed, std::string("the request was dropped")));
}

TEST(Requests, HaveATimeLimit) {
  std::vector<Request> kept;
  Ends const ends([&](Request& request) { kept.push_back(std::move(request)); });
  try {
    static_cast<void>(ends.requester->ask({.kind = 9, .body = {}}, milliseconds(50)));
    FAIL() << "an answer came";
  } catch (base::OperationError const& error) {
    EXPECT_EQ(error.status().code(), base::StatusCode::kTimeout);
    EXPECT_NE(std::string(error.what()).find("kind 9 was not answered within 50 ms"), std::string::npos);
  }
}

TEST(Requests, EndWithTheResponder) {
  std::vector<Request> kept;
  Ends ends([&](Request& request) { kept.push_back(std::move(request)); });
  auto const call = ends.requester->start({.kind = 1, .body = {}});
  ends.responder.reset();
  EXPECT_THROW(static_cast<void>(ends.requester->wait(*call, kLong)), base::OperationError);
  EXPECT_THROW(static_cast<void>(ends.requester->ask({.kind = 1, .body = {}}, kLong)), base::OperationError);
  kept.clear();  // Answers to a link that has gone.
}

TEST(Requests, EndWithTheRequester) {
  std::vector<Request> kept;
  Ends ends([&](Request& request) { kept.push_back(std::move(request)); });
  auto call = ends.requester->start({.kind = 1, .body = {}});
  ends.requester.reset();
  call.reset();
  auto const until = comm::deadline_after(kLong);
  while (!ends.responder->has_ended() && comm::Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_FALSE(ends.responder->why().empty());
}

TEST(Requests, AForkedChildLeavesTheRequesterToItsParent) {
  Ends ends(echo);
  static_cast<void>(ends.requester->ask({.kind = 1, .body = {}}, kLong));
  std::this_thread::sleep_for(milliseconds(50));  // Its thread sleeps by then.
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ends.requester.reset();
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text_of(ends.requester->ask({.kind = 1, .body = bytes_of("still there")}, kLong)), "still there");
}

TEST(Requests, AnswersToARequesterThatHasGoneAreDropped) {
  std::vector<Request> kept;
  std::atomic<int> num_kept = 0;
  Ends ends([&](Request& request) {
    kept.push_back(std::move(request));
    ++num_kept;
  });
  std::vector<Requester::CallPtr> calls;
  for (std::uint32_t kind = 0; kind < 4; ++kind) calls.push_back(ends.requester->start({.kind = kind, .body = {}}));
  while (num_kept < 4) std::this_thread::sleep_for(milliseconds(1));
  ends.requester.reset();
  calls.clear();
  auto const until = comm::deadline_after(kLong);
  while (!ends.responder->has_ended() && comm::Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
  for (auto& each : kept) each.reply(pattern(5000, 1));
}

TEST(Requests, APeerThatTakesNoAnswersLosesItsLink) {
  auto [server, client] = make_two_ends();
  Responder const responder(std::move(server), {.incarnation = kIncarnation, .max_unsent_bytes = 1 << 20},
                            [](Request& request) { request.reply(pattern(100'000, 1)); });
  std::vector<Frame> frames(100);
  std::vector<comm::OperationPtr> sends;
  for (std::uint64_t seq = 1; seq <= frames.size(); ++seq) {
    frames[seq - 1].header = {.seq = seq, .incarnation = kIncarnation, .kind = 5};
    sends.push_back(client->send(frames[seq - 1].bytes(), 0, kRequestMatch, kBytes));
  }
  auto const until = comm::deadline_after(kLong);
  while (!responder.has_ended() && comm::Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_NE(responder.why().find("does not take its answers"), std::string::npos) << responder.why();
}

TEST(Requests, ATooLargeOneEndsTheLinkAndSaysWhy) {
  Ends const ends(echo, 0, 10'000);
  try {
    static_cast<void>(ends.requester->ask({.kind = 1, .body = pattern(10'001, 0)}, kLong));
    FAIL() << "it was taken";
  } catch (base::OperationError const& error) {
    EXPECT_NE(std::string(error.what()).find("announces 10001 bytes, and at most 10000"), std::string::npos)
        << error.what();
  }
}

/// Sends a frame as it is to a responder. @returns the answer's code, or nothing if the link has ended
std::optional<std::uint64_t> send_raw(FrameHeader const& header) {
  auto [server, client] = make_two_ends();
  Responder const responder(std::move(server), {.incarnation = kIncarnation}, echo);
  Frame out{.header = header}, in;
  auto const received = client->receive(in.bytes(), 0, reply_match(header.seq), kBytes);
  auto const sent = client->send(out.bytes(), 0, kRequestMatch, kBytes);
  if (!client->wait(*received, kLong).ok()) return std::nullopt;
  return in.header.kind;
}

TEST(Requests, OfAnotherIncarnationAreRefused) {
  EXPECT_EQ(send_raw({.seq = 1, .incarnation = kIncarnation, .kind = 5}), static_cast<std::uint64_t>(ReplyCode::kOk));
  EXPECT_EQ(send_raw({.seq = 1, .incarnation = kIncarnation + 1, .kind = 5}),
            static_cast<std::uint64_t>(ReplyCode::kOldIncarnation));
}

TEST(Requests, AWrongFrameIsRefused) {
  EXPECT_EQ(send_raw({.seq = 2, .incarnation = kIncarnation, .kind = 5}), std::nullopt) << "the first one is 1";
  EXPECT_EQ(send_raw({.seq = 1, .incarnation = kIncarnation, .kind = kAskIncarnation + 1}),
            static_cast<std::uint64_t>(ReplyCode::kBadRequest));
  EXPECT_EQ(send_raw({.seq = 1, .incarnation = kIncarnation, .kind = 5, .body_bytes = std::uint64_t{1} << 60}),
            std::nullopt);
  EXPECT_EQ(send_raw({.seq = 1, .incarnation = kIncarnation, .kind = 5, .body_bytes = 2000, .piece_bytes = 1033}),
            std::nullopt)
      << "1,032 bytes are left for pieces";
}

}  // namespace
}  // namespace headway::hybrid
