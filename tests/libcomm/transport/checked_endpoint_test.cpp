// SPDX-License-Identifier: Apache-2.0

// CheckedEndpoint wraps a transport and throws where the caller or the transport breaks the contract of Endpoint. With
// a fault seed it also holds arrivals back, repeats and reorders them. The transport here is a script.
//
// A put writes its header (at most 48 bytes) at its offset in the peer's receive buffer, and its payload 64 bytes after
// it. Then it makes a tag visible there: (channel, operation, fragment). Its source is flushed once it may change.

#include "recording_sink.hpp"
#include "test_bytes.hpp"
#include "transport/checked/endpoint.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm {
namespace {

/// A transport of 3 ranks that follows a test's script, right or wrong.
class ScriptedEndpoint final : public Endpoint {
 public:
  std::vector<std::pair<int, Tag>> arrivals;  ///< Reported by the next poll.
  std::vector<int> losses;                    ///< Reported by the next poll, after the arrivals.
  std::uint64_t puts = 0, flushed_puts = 0;
  bool counts_puts = true;  ///< If false, put_count() does not advance.
  bool poll_result = true;
  std::atomic<bool> in_submit{false}, leave_submit{true};  ///< Let a test hold submit().

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 3; }
  [[nodiscard]] PeerTraits traits(int) const override {
    return {.transport = "scripted", .copies_at_put = says_it_copies};
  }
  [[nodiscard]] std::span<std::byte> receive_buffer() override { return receive_buffer_; }
  Status put(Destination const&, std::span<std::byte const>, std::span<std::byte const>, Tag) override {
    puts += counts_puts ? 1 : 0;
    return {};
  }
  void submit() override {
    in_submit = true;
    while (!leave_submit) std::this_thread::yield();
  }
  [[nodiscard]] std::uint64_t put_count(int) const override { return puts; }
  [[nodiscard]] std::uint64_t flushed(int) const override { return flushed_puts; }
  bool poll(ArrivalSink& sink) override {
    for (auto const& [source, tag] : std::exchange(arrivals, {})) sink.arrived(source, tag);
    for (int const peer : std::exchange(losses, {})) sink.lost(peer, "scripted");
    return poll_result;
  }
  Status get(int, std::uint64_t, std::span<std::byte>) override { return {}; }
  bool claim(int, std::uint64_t, std::uint64_t) override { return true; }
  bool open_window(int, WindowId, std::span<std::byte>) override { return true; }
  void close_window(int, WindowId) override {}
  void retract() noexcept override {}
  void send_oob(int, std::string_view) noexcept override {}
  void arm() override {}
  void disarm() override {}
  void sleep(Deadline deadline) override { slept_until = deadline; }
  void wake() noexcept override {}
  [[nodiscard]] int control_fd() const override { return -1; }
  [[nodiscard]] int activity_fd() const override { return -1; }
  [[nodiscard]] HostShare host_share() const override { return {}; }
  [[nodiscard]] bool receives_by_polling() const override { return false; }

  Deadline slept_until{};
  bool says_it_copies = false;  ///< The trait copies_at_put.

 private:
  std::vector<std::byte> receive_buffer_ = std::vector<std::byte>(1024);
};

/// A CheckedEndpoint on a ScriptedEndpoint. Tests script the transport and look for breaches.
class CheckedEndpointTest : public testing::Test {
 protected:
  explicit CheckedEndpointTest(std::uint64_t fault_seed = 0) {
    auto transport = std::make_unique<ScriptedEndpoint>();
    transport_ = transport.get();
    checked_ = std::make_unique<CheckedEndpoint>(std::move(transport), fault_seed);
  }

  /// Text of the contract violation that `call` raises; empty if it raises none.
  template <typename Call>
  static std::string breach_of(Call call) {
    try {
      call();
    } catch (std::logic_error const& breach) {
      return breach.what();
    }
    return "";
  }

  ScriptedEndpoint* transport_ = nullptr;
  std::unique_ptr<CheckedEndpoint> checked_;
  RecordingSink sink_;
};

TEST_F(CheckedEndpointTest, ATransportThatKeepsASourceAgainstItsTraitsIsFound) {
  transport_->says_it_copies = true;
  auto const payload = test_bytes(100, 1);
  EXPECT_NE(breach_of([&] { (void)checked_->put({.peer = 1}, {}, payload, Tag{}); }).find("kept its source"),
            std::string::npos);
}

TEST_F(CheckedEndpointTest, ASourceThatChangesBeforeItsFlushIsFound) {
  auto payload = test_bytes(100, 1);
  ASSERT_TRUE(checked_->put({.peer = 1}, {}, payload, Tag{}).ok());
  payload[99] ^= std::byte{1};
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }), "");
  transport_->flushed_puts = 1;
  EXPECT_EQ(breach_of([&] { (void)checked_->flushed(1); }),
            "the source of put 1 to rank 1 was changed before it was flushed");
}

TEST_F(CheckedEndpointTest, ASourceMayChangeAfterItsFlush) {
  auto payload = test_bytes(100, 1);
  ASSERT_TRUE(checked_->put({.peer = 1}, {}, payload, Tag{}).ok());
  transport_->flushed_puts = 1;
  EXPECT_EQ(checked_->flushed(1), 1u);
  payload[0] ^= std::byte{1};
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }), "");
}

TEST_F(CheckedEndpointTest, CallsOfTwoThreadsThatOverlapAreFound) {
  transport_->leave_submit = false;
  std::jthread const other([&] { checked_->submit(); });
  while (!transport_->in_submit) std::this_thread::yield();
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }), "poll() overlaps submit() of another thread");
  checked_->wake();
  checked_->sleep(Clock::now());
  transport_->leave_submit = true;
}

TEST_F(CheckedEndpointTest, PollFromInsidePollIsFoundButAPutThereIsFine) {
  /// Calls poll() and put() from inside arrived().
  struct Reentrant final : ArrivalSink {
    CheckedEndpoint* endpoint = nullptr;
    std::string poll_breach, put_breach;
    void arrived(int, Tag) override {
      poll_breach = breach_of([&] { endpoint->poll(*this); });
      put_breach = breach_of([&] { (void)endpoint->put({.peer = 1}, {}, {}, Tag{}); });
    }
    void on_oob(int, std::string_view) override {}
    void lost(int, std::string_view) override {}
  } reentrant;
  reentrant.endpoint = checked_.get();
  transport_->arrivals = {{1, Tag{}}};
  checked_->poll(reentrant);
  EXPECT_EQ(reentrant.poll_breach, "poll() was called from inside poll()");
  EXPECT_EQ(reentrant.put_breach, "");
}

TEST_F(CheckedEndpointTest, APutOutOfRangeNamesRangeAndWindow) {
  auto const payload = test_bytes(1000, 1);
  EXPECT_EQ(breach_of([&] { (void)checked_->put({.peer = 2}, {}, payload, Tag{}); }),
            "put(): 1064 bytes at 0 leave the receive buffer of rank 2 (1024 bytes)");
  EXPECT_EQ(breach_of([&] { (void)checked_->put({.peer = 0}, {}, {}, Tag{}); }),
            "put(): rank 0 is not a peer of rank 0 of 3");
  EXPECT_EQ(breach_of([&] { (void)checked_->put({.peer = 1}, std::span(payload).first(49), {}, Tag{}); }),
            "put(): a header of 49 bytes is longer than 48");
  EXPECT_EQ(breach_of([&] { (void)checked_->put({.peer = 1, .offset = 65}, {}, {}, Tag{}); }),
            "put(): offset 65 is no multiple of 64");
  EXPECT_EQ(breach_of([&] { checked_->prepare({.peer = 1}, 48, 1000); }),
            "prepare(): 1064 bytes at 0 leave the receive buffer of rank 1 (1024 bytes)");
  EXPECT_EQ(breach_of([&] { (void)checked_->put({.peer = 1, .window = 4}, {}, {}, Tag{}); }),
            "put(): window 4 of rank 1 cannot be written");
}

TEST_F(CheckedEndpointTest, WhatTheTransportCannotDoIsRefused) {
  std::byte memory[8];
  EXPECT_EQ(breach_of([&] { (void)checked_->get(1, 0, memory); }), "get(): the memory of rank 1 cannot be read");
  EXPECT_EQ(breach_of([&] { checked_->open_window(1, 1, memory); }), "open_window(): rank 1 cannot put into windows");
  EXPECT_EQ(breach_of([&] { checked_->close_window(1, 1); }), "close_window(): window 1 is not open to rank 1");
}

TEST_F(CheckedEndpointTest, AnOobMessageToNobodyIsReportedByTheNextCall) {
  checked_->send_oob(7, "lost in space");
  EXPECT_NE(breach_of([&] { checked_->submit(); }), "");
  EXPECT_EQ(breach_of([&] { checked_->submit(); }), "");
}

TEST_F(CheckedEndpointTest, ATransportThatReportsALossTwiceIsFound) {
  transport_->losses = {2};
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }), "");
  transport_->losses = {2};
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }),
            "transport of rank 0: poll() reported lost() of rank 2 after its loss");
  EXPECT_EQ(sink_.losses_of(2), 1u);
}

TEST_F(CheckedEndpointTest, AnArrivalFromALostPeerOrFromNobodyIsFound) {
  transport_->losses = {1};
  checked_->poll(sink_);
  transport_->arrivals = {{1, Tag{}}};
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }),
            "transport of rank 0: poll() reported arrived() of rank 1 after its loss");
  transport_->arrivals = {{3, Tag{}}};
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }),
            "transport of rank 0: poll() reported arrived() of rank 3, which is no peer");
}

TEST_F(CheckedEndpointTest, ATransportThatCountsWrongIsFound) {
  transport_->puts = transport_->flushed_puts = 5;
  EXPECT_EQ(checked_->flushed(1), 5u);
  transport_->flushed_puts = 4;
  EXPECT_EQ(breach_of([&] { (void)checked_->flushed(1); }), "transport of rank 0: flushed(rank 1) fell from 5 to 4");
  transport_->flushed_puts = 6;
  EXPECT_EQ(breach_of([&] { (void)checked_->flushed(1); }), "transport of rank 0: flushed(rank 1) is 6 of 5 puts");
  transport_->counts_puts = false;
  EXPECT_EQ(breach_of([&] { (void)checked_->put({.peer = 1}, {}, {}, Tag{}); }),
            "transport of rank 0: put() to rank 1 took put_count() from 5 to 5 on success");
}

TEST_F(CheckedEndpointTest, ATransportWhosePollDeniesWhatItReportedIsFound) {
  transport_->poll_result = false;
  transport_->arrivals = {{1, Tag{}}};
  EXPECT_EQ(breach_of([&] { checked_->poll(sink_); }),
            "transport of rank 0: poll() reported something and returned false");
}

/// Records arrivals in order, repeats included.
struct OrderSink final : ArrivalSink {
  std::vector<std::uint32_t> heard;
  void arrived(int, Tag tag) override { heard.push_back(tag.packed()); }
  void on_oob(int, std::string_view) override {}
  void lost(int, std::string_view) override {}
};

/// A CheckedEndpoint with faults: it delays, repeats and reorders arrivals.
class FaultyEndpointTest : public CheckedEndpointTest {
 protected:
  FaultyEndpointTest() : CheckedEndpointTest(99) { transport_->poll_result = false; }

  /// Polls 1,000 arrivals, 5 at a time, until no poll makes progress. @returns the tags in the order of their arrival.
  static std::vector<std::uint32_t> heard_with_seed(std::uint64_t seed) {
    auto transport = std::make_unique<ScriptedEndpoint>();
    auto& script = *transport;
    CheckedEndpoint checked(std::move(transport), seed);
    OrderSink sink;
    script.poll_result = true;
    for (std::uint16_t operation = 0; operation < 1000; operation += 5) {
      for (std::uint16_t i = 0; i < 5; ++i) {
        script.arrivals.emplace_back(1, Tag{.operation = static_cast<std::uint16_t>(operation + i)});
      }
      checked.poll(sink);
    }
    script.poll_result = false;
    while (checked.poll(sink)) {
    }
    return sink.heard;
  }
};

TEST_F(FaultyEndpointTest, EveryArrivalIsHeardThoughLateTwiceAndOutOfOrder) {
  auto const heard = heard_with_seed(1);
  EXPECT_EQ(std::set<std::uint32_t>(heard.begin(), heard.end()).size(), 1000u);
  EXPECT_GT(heard.size(), 1050u) << "too few repeats";
  EXPECT_LT(heard.size(), 1250u) << "too many repeats";
  EXPECT_FALSE(std::is_sorted(heard.begin(), heard.end()));
}

TEST_F(FaultyEndpointTest, TheScheduleIsAFunctionOfTheSeed) {
  EXPECT_EQ(heard_with_seed(1), heard_with_seed(1));
  EXPECT_NE(heard_with_seed(1), heard_with_seed(2));
}

TEST_F(FaultyEndpointTest, ARepeatComesBeforeItsTagCouldMeanAnotherFragment) {
  auto const heard = heard_with_seed(3);
  std::map<std::uint32_t, std::size_t> originals_at;
  std::size_t originals = 0;
  for (auto const tag : heard) {
    auto const [at, is_original] = originals_at.emplace(tag, originals);
    originals += is_original ? 1 : 0;
    EXPECT_LE(originals - at->second, FaultSchedule::kMaxRepeatDistance + 1);
  }
}

TEST_F(FaultyEndpointTest, NobodySleepsOverAHeldArrival) {
  auto const long_deadline = Clock::now() + std::chrono::hours(1);
  for (std::uint16_t operation = 0; operation < 50; ++operation) {
    transport_->arrivals = {{1, Tag{.operation = operation}}};
    transport_->poll_result = true;
    bool moved = checked_->poll(sink_);
    transport_->poll_result = false;
    while (!sink_.has(1, Tag{.operation = operation})) {
      ASSERT_TRUE(moved) << "poll() said that nothing moves while an arrival was held";
      checked_->sleep(long_deadline);
      ASSERT_LE(transport_->slept_until, Clock::now()) << "sleep() slept while an arrival was held";
      moved = checked_->poll(sink_);
    }
  }
}

TEST_F(FaultyEndpointTest, HeldArrivalsAreHeardBeforeTheLossOfTheirSource) {
  for (std::uint16_t operation = 0; operation < 100; ++operation) {
    transport_->arrivals.emplace_back(1, Tag{.operation = operation});
  }
  transport_->losses = {1};
  transport_->poll_result = true;
  checked_->poll(sink_);
  EXPECT_EQ(sink_.tags_from(1), 100u);
  EXPECT_EQ(sink_.losses_of(1), 1u);
}

}  // namespace
}  // namespace headway::comm
