// SPDX-License-Identifier: Apache-2.0

// Bootstrap: ranks that are threads find each other through a store and connect a control socket for each pair.
//
// Rank 0 announces its address in the store. The others connect to it and to each other, prove that they know the
// group's secret, and compare their options. Each attempt has a generation of its own, so it ignores what an earlier
// attempt under the same name left in the store. A stranger is a connection that does not prove to be a rank.

#include "bootstrap/control_socket.hpp"

#include "bootstrap/handshake.hpp"
#include "bootstrap/host_identity.hpp"
#include "bootstrap/rank_address.hpp"
#include "bootstrap/store_keys.hpp"
#include "headway/base/file_descriptor.hpp"
#include "open_file_limit.hpp"
#include "system/random.hpp"
#include "system/sockets.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Control sockets of a rank, or the error of connecting.
struct RankResult {
  std::vector<ControlSocket> control_sockets;
  std::string error;
};

/// Arguments of one rank.
struct RankArgs {
  int size = 0;
  GroupOptions options;
  std::size_t receive_buffer_bytes = 1 << 20;
  std::chrono::milliseconds time = seconds(20);  ///< Time limit of connecting.
};

/// Connects one rank; never throws.
RankResult connect_rank(int rank, RankArgs const& args, Store& store) {
  RankResult result;
  Agreement const agreement{
      .size = args.size, .receive_buffer_bytes = args.receive_buffer_bytes, .options = &args.options};
  try {
    result.control_sockets = connect_control_sockets(rank, agreement, store, Clock::now() + args.time);
  } catch (std::exception const& error) {
    result.error = error.what();
  }
  return result;
}

/// Connects all ranks, each in a thread of its own.
std::vector<RankResult> connect_all(std::vector<RankArgs> const& args, Store& store) {
  std::vector<std::future<RankResult>> pending;
  for (std::size_t rank = 0; rank < args.size(); ++rank) {
    pending.push_back(
        std::async(std::launch::async, [&, rank] { return connect_rank(static_cast<int>(rank), args[rank], store); }));
  }
  std::vector<RankResult> results;
  for (auto& result : pending) results.push_back(result.get());
  return results;
}

std::vector<RankArgs> ranks(int size, Transport transport) {
  RankArgs args;
  args.size = size;
  args.options.transport = transport;
  args.options.name = "test";
  return std::vector<RankArgs>(static_cast<std::size_t>(size), args);
}

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

// Each rank sends its number on each control socket, and each peer receives the right one.
void expect_connected(std::vector<RankResult> const& results) {
  int const size = static_cast<int>(results.size());
  for (int rank = 0; rank < size; ++rank) {
    auto const& result = results[static_cast<std::size_t>(rank)];
    ASSERT_EQ(result.error, "");
    ASSERT_EQ(result.control_sockets.size(), results.size());
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      int const word = rank * 1000 + peer;
      ASSERT_EQ(::send(result.control_sockets[static_cast<std::size_t>(peer)].fd.get(), &word, sizeof(word), 0),
                ssize_t{4});
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].control_sockets[static_cast<std::size_t>(rank)].fd.get(), -1);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      int word = 0;
      int const fd = results[static_cast<std::size_t>(rank)].control_sockets[static_cast<std::size_t>(peer)].fd.get();
      ASSERT_EQ(::recv(fd, &word, sizeof(word), MSG_WAITALL), ssize_t{4});
      EXPECT_EQ(word, peer * 1000 + rank);
    }
  }
}

class EveryTransport : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Transports, EveryTransport,
                         testing::Values(Transport::kAuto, Transport::kShm, Transport::kTcp));

TEST_P(EveryTransport, ConnectsAllPairs) {
  for (int size : {1, 2, 5, 8}) {
    MemoryStore store;
    auto const results = connect_all(ranks(size, GetParam()), store);
    expect_connected(results);
    for (auto const& result : results) {
      for (auto const& control_socket : result.control_sockets) {
        if (!control_socket.fd.valid()) continue;
        EXPECT_EQ(control_socket.same_host, GetParam() != Transport::kTcp);
        EXPECT_EQ(control_socket.peer_pid, GetParam() != Transport::kTcp ? ::getpid() : -1);
      }
    }
  }
}

TEST_P(EveryTransport, GroupsOfOneStoreDoNotMix) {
  MemoryStore store;
  auto first = ranks(3, GetParam());
  auto second = ranks(3, GetParam());
  for (auto& args : second) args.options.name = "other";
  auto other = std::async(std::launch::async, [&] { return connect_all(second, store); });
  expect_connected(connect_all(first, store));
  expect_connected(other.get());
}

std::vector<RankResult> connect_with_files(std::vector<RankArgs> const& args, int num_files) {
  MemoryStore store;
  OpenFileLimit const limit(num_files);
  return connect_all(args, store);
}

/// Expects all errors to name the limit and the need of 3 ranks: about 64 files for the process, and 4 per rank.
void expect_told_of_files(std::vector<RankResult> const& results, int num_files) {
  for (auto const& result : results) {
    EXPECT_TRUE(contains(result.error, "files (ulimit -n)")) << num_files << ": " << result.error;
    EXPECT_TRUE(contains(result.error, "a group of 3 ranks needs about 76")) << num_files << ": " << result.error;
    EXPECT_FALSE(contains(result.error, "in time")) << num_files << ": " << result.error;
  }
}

TEST_P(EveryTransport, TooFewOpenFilesAreToldWithTheLimitAndTheNeed) {
  if (kSanitizerNeedsFiles) GTEST_SKIP() << "the sanitizer opens files of its own";
  auto const args = ranks(3, GetParam());
  for (int const num_files : {0, 5}) expect_told_of_files(connect_with_files(args, num_files), num_files);
}

// The highest limit that is too low leaves room for the sockets but not for the transport. The ranks learn it while
// they still talk to each other. The number of files for sockets depends on the host's addresses.
TEST_P(EveryTransport, TooFewOpenFilesForTheTransportAreTold) {
  if (kSanitizerNeedsFiles) GTEST_SKIP() << "the sanitizer opens files of its own";
  if (GetParam() == Transport::kTcp) GTEST_SKIP() << "tcp needs the sockets alone";
  auto const args = ranks(3, GetParam());
  int num_files = 100;
  std::vector<RankResult> results;
  do {
    results = connect_with_files(args, --num_files);
  } while (num_files > 0 && std::ranges::all_of(results, [](auto const& result) { return result.error.empty(); }));
  EXPECT_LT(num_files, 99);
  EXPECT_GT(num_files, 6) << "each rank has two sockets";
  expect_told_of_files(results, num_files);
}

TEST(ControlSockets, ConnectOverIpv4AndIpv6Addresses) {
  for (std::string const address : {"127.0.0.1", "::1"}) {
    MemoryStore store;
    auto args = ranks(3, Transport::kTcp);
    for (auto& rank : args) rank.options.interface = address;
    auto const results = connect_all(args, store);
    if (address == "::1" && contains(results[0].error, "no interface of this host")) {
      GTEST_SKIP() << "this host has no IPv6 loopback";
    }
    expect_connected(results);
    for (auto const& result : results) {
      for (auto const& control_socket : result.control_sockets) {
        if (control_socket.fd.valid()) {
          EXPECT_EQ(control_socket.own_address, address);
        }
      }
    }
  }
}

TEST(ControlSockets, AnInterfaceMayBeGivenByName) {
  MemoryStore store;
  auto args = ranks(3, Transport::kTcp);
  for (auto& rank : args) rank.options.interface = "lo";
  auto const results = connect_all(args, store);
  expect_connected(results);
  EXPECT_EQ(results[0].control_sockets[1].own_address, results[1].control_sockets[0].address);
}

// The highest rank does not listen. It must detect the error nevertheless, before it meets others.
TEST(ControlSockets, AnInterfaceThatIsNotThereIsToldToAllWhicheverRankNamesIt) {
  for (std::size_t const wrong : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    MemoryStore store;
    auto args = ranks(3, Transport::kTcp);
    args[wrong].options.interface = "nosuch0";
    auto const start = Clock::now();
    auto const results = connect_all(args, store);
    EXPECT_LT(Clock::now() - start, seconds(10));
    for (auto const& result : results) EXPECT_TRUE(contains(result.error, "nosuch0")) << wrong << ": " << result.error;
  }
}

TEST(ControlSockets, AGivenSecretConnects) {
  MemoryStore store;
  auto args = ranks(3, Transport::kAuto);
  for (auto& rank : args) rank.options.secret = "sesame";
  expect_connected(connect_all(args, store));
}

/// A change of one rank's arguments, and the text that must appear in all errors.
struct Difference {
  std::string name;
  void (*apply)(RankArgs&);
  std::string expected;
};

class Disagreements : public testing::TestWithParam<Difference> {};

TEST_P(Disagreements, AreNamedWithBothValuesAndFailAllRanksAtOnce) {
  MemoryStore store;
  auto args = ranks(3, Transport::kAuto);
  GetParam().apply(args[2]);
  auto const start = Clock::now();
  auto const results = connect_all(args, store);
  EXPECT_LT(Clock::now() - start, seconds(10));
  for (auto const& result : results) EXPECT_TRUE(contains(result.error, GetParam().expected)) << result.error;
  EXPECT_TRUE(contains(results[2].error, "at rank 2")) << results[2].error;
}

INSTANTIATE_TEST_SUITE_P(
    Fields, Disagreements,
    testing::Values(
        Difference{"size", [](RankArgs& a) { a.size = 4; }, "size is "},
        Difference{"slot", [](RankArgs& a) { a.options.slot_bytes = 12345; }, "slot_bytes is "},
        Difference{"lag", [](RankArgs& a) { a.options.max_lag = 3; }, "max_lag_limit is "},
        Difference{"channels", [](RankArgs& a) { a.options.num_channels = 9; }, "num_channels is "},
        Difference{"pull", [](RankArgs& a) { a.options.allow_get = false; }, "allow_get is "},
        Difference{"receive_buffer", [](RankArgs& a) { a.receive_buffer_bytes = 4096; }, "receive_buffer_bytes is "},
        Difference{"transport", [](RankArgs& a) { a.options.transport = Transport::kTcp; }, "transport is "},
        Difference{"checked", [](RankArgs& a) { a.options.wrap_checked = true; }, "wrap_checked is "},
        Difference{"seed", [](RankArgs& a) { a.options.fault_seed = 7; }, "fault_seed is "}),
    [](auto const& tested) { return tested.param.name; });

// Ranks must agree on max_lag_limit, not on max_lag. The default of max_lag_limit is max_lag.
TEST(ControlSockets, EqualBoundsWrittenDifferentlyAgree) {
  MemoryStore store;
  auto args = ranks(2, Transport::kAuto);
  args[0].options.max_lag = 2;
  args[1].options.max_lag = 1;
  args[1].options.max_lag_limit = 2;
  expect_connected(connect_all(args, store));
}

TEST(ControlSockets, MissingRanksAreNamedAtTheDeadline) {
  MemoryStore store;
  auto args = ranks(2, Transport::kAuto);
  for (auto& rank : args) {
    rank.size = 4;
    rank.time = seconds(1);
  }
  for (auto const& result : connect_all(args, store)) {
    EXPECT_TRUE(contains(result.error, "rank 2")) << result.error;
    EXPECT_TRUE(contains(result.error, "rank 3")) << result.error;
  }
}

TEST(ControlSockets, ARankThatComesAloneNamesTheLowerOne) {
  MemoryStore store;
  auto args = ranks(2, Transport::kAuto)[0];
  args.time = seconds(1);
  args.options.secret = "given";
  auto const result = connect_rank(1, args, store);
  EXPECT_TRUE(contains(result.error, "rank 0 (it did not publish where it can be reached)")) << result.error;
}

TEST(ControlSockets, AMissingSecretFailsAtOnceWhereOthersHaveOne) {
  MemoryStore store;
  auto args = ranks(2, Transport::kAuto);
  args[0].options.secret = "sesame";
  for (auto const& result : connect_all(args, store)) {
    EXPECT_TRUE(contains(result.error, "rank 0 was given a secret and rank 1 was not")) << result.error;
  }
}

/// A store that tells where rank 0 listens, so that a test can connect to it before the other ranks do.
class ObservedStore final : public Store {
 public:
  void set(std::string const& key, std::string_view value) override { inner_.set(key, value); }
  std::string get(std::string const& key, milliseconds timeout) override { return inner_.get(key, timeout); }
  RankAddress address_of_rank_0() {
    return StoreKeys(inner_, "test").find_announcement(Clock::now() + seconds(20)).value().rank_address;
  }

 private:
  MemoryStore inner_;
};

std::string read_all(int fd) {
  std::string text;
  char buffer[512];
  for (ssize_t count = 0; (count = ::recv(fd, buffer, sizeof(buffer), 0)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  return text;
}

base::FileDescriptor reach(SocketAddress const& address) {
  base::FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), address.raw(), address.length()), 0);
  return socket;
}

TEST_P(EveryTransport, StrangersAreToldWhyAndDoNotDisturb) {
  ObservedStore store;
  auto args = ranks(3, GetParam());
  for (auto& rank : args) rank.options.secret = "sesame";
  auto rank_0 = std::async(std::launch::async, [&] { return connect_rank(0, args[0], store); });
  RankAddress const rank_address = store.address_of_rank_0();
  SocketAddress const address =
      GetParam() == Transport::kTcp ? rank_address.addresses.back() : SocketAddress::local(rank_address.local_name);

  std::vector<base::FileDescriptor> silent;
  for (int i = 0; i < 80; ++i) silent.push_back(reach(address));  // More than rank 0 keeps: 64 + 2 per rank.
  {
    auto const scanner = reach(address);
    std::string const request = "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n";
    ASSERT_EQ(::send(scanner.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    std::string const answer = read_all(scanner.get());
    EXPECT_TRUE(contains(answer, "not its protocol")) << answer;
  }
  auto intruder = args[0];
  intruder.options.secret = "open";
  intruder.time = seconds(10);
  std::string const refused = connect_rank(1, intruder, store).error;
  EXPECT_TRUE(contains(refused, "secret")) << refused;

  auto rank_1 = std::async(std::launch::async, [&] { return connect_rank(1, args[1], store); });
  auto rank_2 = std::async(std::launch::async, [&] { return connect_rank(2, args[2], store); });
  std::vector<RankResult> results;
  results.push_back(rank_0.get());
  results.push_back(rank_1.get());
  results.push_back(rank_2.get());
  expect_connected(results);
}

constexpr char const* kAnnouncementKey = "headway/test/announcement";

// Leaves in the store the keys of an attempt whose rank 0 has given up: its announcement, and why it failed.
void leave_keys_of_a_failed_attempt(Store& store, RankArgs args) {
  args.time = milliseconds(10);
  EXPECT_NE(connect_rank(0, args, store).error, "");
}

TEST(ControlSockets, AnAnnouncementOfAProcessThatIsGoneGivesWayToANewOne) {
  for (bool const has_secret : {false, true}) {
    auto args = ranks(2, Transport::kAuto);
    if (has_secret) {
      for (auto& rank : args) rank.options.secret = "sesame";
    }
    MemoryStore earlier;
    leave_keys_of_a_failed_attempt(earlier, args[0]);
    MemoryStore store;
    store.set(kAnnouncementKey, earlier.get(kAnnouncementKey, seconds(1)));
    auto rank_1 = std::async(std::launch::async, [&] { return connect_rank(1, args[1], store); });
    std::this_thread::sleep_for(milliseconds(50));  // Rank 1 has most likely tried the old address by then.
    std::vector<RankResult> results;
    results.push_back(connect_rank(0, args[0], store));
    results.push_back(rank_1.get());
    expect_connected(results);
  }
}

TEST(ControlSockets, AnAnnouncementOfARankThatWasGivenASecretGivesWayToOneThatWasNot) {
  auto args = ranks(2, Transport::kAuto);
  MemoryStore store;
  auto gone = args[0];
  gone.options.secret = "sesame";
  leave_keys_of_a_failed_attempt(store, gone);
  // Records that rank 1 took part in that attempt, so that the failure in the store does not count for it.
  StoreKeys::conclude(StoreKeys(store, "test").find_announcement(Clock::now() + seconds(1))->generation(), 1);
  auto rank_1 = std::async(std::launch::async, [&] { return connect_rank(1, args[1], store); });
  std::this_thread::sleep_for(milliseconds(50));
  std::vector<RankResult> results;
  results.push_back(connect_rank(0, args[0], store));
  results.push_back(rank_1.get());
  expect_connected(results);
}

TEST(ControlSockets, AGroupIsMadeAgainUnderOneStoreAndName) {
  MemoryStore store;
  for (int round = 0; round < 20; ++round) expect_connected(connect_all(ranks(3, Transport::kAuto), store));
}

TEST(ControlSockets, EveryAttemptHasAGenerationOfItsOwnThatAllRanksKnow) {
  MemoryStore store;
  std::set<std::string> seen;
  for (int round = 0; round < 3; ++round) {
    auto const args = ranks(3, Transport::kAuto);
    std::vector<std::future<std::string>> pending;
    for (int rank = 0; rank < 3; ++rank) {
      pending.push_back(std::async(std::launch::async, [&, rank] {
        Agreement const agreement{.size = 3, .receive_buffer_bytes = 4096, .options = &args[0].options};
        return run_bootstrap(rank, agreement, store, Clock::now() + seconds(20)).generation;
      }));
    }
    std::set<std::string> of_round;
    for (auto& each : pending) of_round.insert(each.get());
    EXPECT_EQ(of_round.size(), 1U);
    EXPECT_TRUE(seen.insert(*of_round.begin()).second);
  }
}

// Posts a failure of rank 2 under the announced generation, `after_start` after the start of this process. The format
// is "RANK TIME_MS REASON".
void post_failure(MemoryStore& store, std::chrono::milliseconds after_start) {
  StoreKeys keys(store, "test");
  auto const generation = keys.find_announcement(Clock::now() + seconds(1))->generation();
  auto const posted_at = std::chrono::duration_cast<milliseconds>(process_start().time_since_epoch()) + after_start;
  store.set("headway/test/" + generation + "/failure", "2 " + std::to_string(posted_at.count()) + " the end is near");
}

TEST(ControlSockets, AFailureOfAnEarlierAttemptEndsNoNewOne) {
  auto args = ranks(2, Transport::kAuto);
  MemoryStore store;
  leave_keys_of_a_failed_attempt(store, args[0]);
  post_failure(store, -seconds(1));
  auto rank_1 = std::async(std::launch::async, [&] { return connect_rank(1, args[1], store); });
  std::this_thread::sleep_for(milliseconds(100));
  std::vector<RankResult> results;
  results.push_back(connect_rank(0, args[0], store));
  results.push_back(rank_1.get());
  expect_connected(results);
}

TEST(ControlSockets, ARankThatComesLateLearnsWhyTheOthersGaveUp) {
  auto args = ranks(2, Transport::kAuto);
  MemoryStore store;
  leave_keys_of_a_failed_attempt(store, args[0]);
  post_failure(store, std::chrono::hours(24));
  auto const start = Clock::now();
  auto const result = connect_rank(1, args[1], store);
  EXPECT_TRUE(contains(result.error, "rank 2 gave up: the end is near")) << result.error;
  EXPECT_LT(Clock::now() - start, seconds(5));
}

TEST(ControlSockets, ARankFollowsRank0WhenItIsAnnouncedAnew) {
  auto args = ranks(3, Transport::kAuto);
  for (auto& rank : args) rank.time = seconds(60);
  MemoryStore store;
  // An attempt that its launcher left while it waits for rank 2.
  auto old_args = args[0];
  old_args.time = seconds(3);
  auto old_rank_0 = std::async(std::launch::async, [&] { return connect_rank(0, old_args, store); });
  auto rank_1 = std::async(std::launch::async, [&] { return connect_rank(1, args[1], store); });
  std::this_thread::sleep_for(milliseconds(300));
  auto rank_2 = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(milliseconds(1500));
    return connect_rank(2, args[2], store);
  });
  std::vector<RankResult> results;
  results.push_back(connect_rank(0, args[0], store));
  results.push_back(rank_1.get());
  results.push_back(rank_2.get());
  expect_connected(results);
  EXPECT_NE(old_rank_0.get().error, "");
}

TEST(ControlSockets, ACallerThatGivesUpConnectingTellsTheOthers) {
  MemoryStore store;
  auto args = ranks(3, Transport::kAuto);
  args[1].options.while_connecting = [] { throw std::logic_error("Ctrl-C"); };
  auto const start = Clock::now();
  auto rank_0 = std::async(std::launch::async, [&] { return connect_rank(0, args[0], store); });
  EXPECT_EQ(connect_rank(1, args[1], store).error, "Ctrl-C");
  EXPECT_TRUE(contains(rank_0.get().error, "rank 1 gave up: its caller gave up connecting"));
  EXPECT_LT(Clock::now() - start, seconds(5));
}

TEST(ControlSockets, ARankThatCannotListenTellsTheOthersWhy) {
  for (std::size_t const failing : {0U, 1U}) {
    MemoryStore store;
    auto args = ranks(2, Transport::kAuto);
    args[failing].size = args[1 - failing].size = 3;  // The highest rank does not listen.
    args[failing].options.interface = "no-such-interface";
    auto const start = Clock::now();
    auto const results = connect_all(args, store);
    EXPECT_LT(Clock::now() - start, seconds(10));
    EXPECT_TRUE(contains(results[failing].error, "interface is 'no-such-interface', which is no interface"))
        << results[failing].error;
    EXPECT_TRUE(contains(results[1 - failing].error, "no-such-interface")) << results[1 - failing].error;
  }
}

TEST(ControlSockets, TwoProcessesWithOneRankFailTheGroup) {
  MemoryStore store;
  auto args = ranks(3, Transport::kAuto);
  auto rank_0 = std::async(std::launch::async, [&] { return connect_rank(0, args[0], store); });
  auto first = std::async(std::launch::async, [&] { return connect_rank(2, args[2], store); });
  auto second = std::async(std::launch::async, [&] { return connect_rank(2, args[2], store); });
  EXPECT_TRUE(contains(rank_0.get().error, "two processes say that they are rank 2"));
  EXPECT_NE(first.get().error, "");
  EXPECT_NE(second.get().error, "");
}

// Shakes hands as `rank` and returns the connection without sending more.
base::FileDescriptor shake_hands(int rank, RankArgs const& args, RankAddress const& rank_address) {
  Agreement const agreement{
      .size = args.size, .receive_buffer_bytes = args.receive_buffer_bytes, .options = &args.options};
  auto handshake = Handshake::connect({.rank = rank,
                                       .size = args.size,
                                       .instance = random_bytes<InstanceId().size()>(),
                                       .secret = args.options.secret,
                                       .fields = fields_of(agreement)},
                                      0, rank_address.instance);
  base::FileDescriptor socket = reach(SocketAddress::local(rank_address.local_name));
  std::vector<std::byte> buffer;
  for (;;) {
    auto const output = handshake.take_output();
    EXPECT_EQ(::send(socket.get(), output.data(), output.size(), 0), static_cast<ssize_t>(output.size()));
    buffer.resize(handshake.wanted());
    if (buffer.empty()) break;
    ssize_t const count = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    EXPECT_GT(count, 0);
    handshake.receive(std::span(buffer).first(static_cast<std::size_t>(count)));
  }
  EXPECT_EQ(handshake.outcome(), Handshake::Outcome::kDone) << handshake.error();
  return socket;
}

/// Rank 0 waits for ranks 1 and 2. The test plays a rank that fails.
class DuringTheBootstrap : public testing::Test {
 protected:
  DuringTheBootstrap() {
    for (auto& rank : args_) {
      rank.options.secret = "sesame";
      rank.time = seconds(60);
    }
    rank_0_ = std::async(std::launch::async, [this] { return connect_rank(0, args_[0], store_); });
    rank_address_ = store_.address_of_rank_0();
  }

  void expect_rank_0_to_say(std::string const& text) {
    auto const start = Clock::now();
    auto const result = rank_0_.get();
    EXPECT_TRUE(contains(result.error, text)) << result.error;
    EXPECT_LT(Clock::now() - start, seconds(20));
  }

  ObservedStore store_;
  std::vector<RankArgs> args_ = ranks(3, Transport::kAuto);
  std::future<RankResult> rank_0_;
  RankAddress rank_address_;
};

TEST_F(DuringTheBootstrap, TheEndOfARankIsNoticedLongBeforeTheDeadline) {
  shake_hands(2, args_[2], rank_address_).reset();
  expect_rank_0_to_say("rank 2 ended during the bootstrap");
}

TEST_F(DuringTheBootstrap, ARankThatGivesUpTellsTheOthersWhy) {
  args_[2].time = seconds(1);
  auto const result = connect_rank(2, args_[2], store_);
  EXPECT_TRUE(contains(result.error, "in time: rank 1")) << result.error;
  expect_rank_0_to_say("rank 2 gave up: not connected with rank 2 in time: rank 1");
}

TEST_F(DuringTheBootstrap, ARankThatSpeaksOutOfTurnIsNamed) {
  auto const socket = shake_hands(2, args_[2], rank_address_);
  ASSERT_EQ(::send(socket.get(), "0123456789ab", 12, 0), 12);  // Length of the prefix of a message.
  expect_rank_0_to_say("rank 2 broke the protocol");
}

TEST_F(DuringTheBootstrap, ARankThatSaysNothingIsNamedAtTheDeadline) {
  auto const socket = shake_hands(2, args_[2], rank_address_);
  args_[1].time = seconds(1);
  auto const result = connect_rank(1, args_[1], store_);
  EXPECT_TRUE(contains(result.error, "in time: rank 2")) << result.error;
  expect_rank_0_to_say("rank 1 gave up");
}

TEST(RankAddress, SurvivesTheStore) {
  RankAddress rank_address;
  rank_address.instance = random_bytes<InstanceId().size()>();
  rank_address.host = "boot/1";
  rank_address.local_name = "headway-x";
  rank_address.addresses = {*SocketAddress::parse("10.1.2.3:4"), *SocketAddress::parse("[fd00::1]:65535")};
  RankAddress const read = decode_rank_address(encode_rank_address(rank_address), 0);
  EXPECT_EQ(read.instance, rank_address.instance);
  EXPECT_EQ(read.host, rank_address.host);
  EXPECT_EQ(read.local_name, rank_address.local_name);
  ASSERT_EQ(read.addresses.size(), 2U);
  EXPECT_EQ(read.addresses[1].to_string(), "[fd00::1]:65535");
  EXPECT_THROW(static_cast<void>(decode_rank_address("something else", 3)), SystemError);
  EXPECT_THROW(static_cast<void>(decode_rank_address("", 3)), SystemError);
}

}  // namespace
}  // namespace headway::comm
