// SPDX-License-Identifier: Apache-2.0

// Connector: which of a peer's addresses is used, and how long the others hold it up.
//
// Rank 0 runs in a thread of the test and counts completed handshakes, so that a second connection by another address
// would show. Three kinds of bad address are made for real: one that never answers (its queue of connections is
// full), one where nobody listens, and one where another process listens. A connector tries the next address if one has
// not connected within 250 ms; tests compare times with that, with room for a busy host. An InstanceId is random and
// identifies the process of a rank. `fields` are options on which ranks must agree.

#include "bootstrap/connector.hpp"

#include "system/epoll.hpp"
#include "system/random.hpp"
#include "system/sockets.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <future>
#include <thread>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

HandshakeSelf self_of(int rank, InstanceId const& instance) {
  return {.rank = rank, .size = 2, .instance = instance, .secret = "a secret for this test", .fields = {{"size", "2"}}};
}

/// Rank 0. It accepts connections one after the other, and counts completed handshakes.
class Acceptor {
 public:
  explicit Acceptor(InstanceId const& instance)
      : self_(std::make_shared<HandshakeSelf>(self_of(0, instance))),
        listener_(listen_on(*SocketAddress::numeric("127.0.0.1", 0))),
        thread_([this](std::stop_token const& stop) { run(stop); }) {}
  ~Acceptor() { thread_.request_stop(); }

  [[nodiscard]] SocketAddress address() const { return own_address(listener_.get()); }
  [[nodiscard]] int num_done() const { return num_done_; }

 private:
  void run(std::stop_token const& stop) {
    while (!stop.stop_requested()) {
      if (!is_readable(listener_.get())) {
        std::this_thread::sleep_for(milliseconds(1));
        continue;
      }
      sockets_.emplace_back(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      shake_hands(sockets_.back().get());
    }
  }

  void shake_hands(int socket) {
    auto handshake = Handshake::accept(self_);
    std::vector<std::byte> buffer;
    while (handshake.wanted() > 0) {
      buffer.resize(handshake.wanted());
      ssize_t const count = ::recv(socket, buffer.data(), buffer.size(), 0);
      if (count <= 0) return;
      handshake.receive(std::span(buffer).first(static_cast<std::size_t>(count)));
      auto const output = handshake.take_output();
      static_cast<void>(::send(socket, output.data(), output.size(), MSG_NOSIGNAL));
    }
    if (handshake.outcome() == Handshake::Outcome::kDone) ++num_done_;
  }

  Handshake::Self self_;
  base::FileDescriptor listener_;
  std::vector<base::FileDescriptor> sockets_;
  std::atomic<int> num_done_ = 0;
  std::jthread thread_;
};

/// An address that does not answer: its queue of connections is full, so its kernel drops new ones. It is no loopback
/// address: a Connector tries no further address while an attempt to a loopback address is open.
class Silent {
 public:
  Silent() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto const any = address_of_this_host();
    EXPECT_EQ(::bind(listener_.get(), any.raw(), any.length()), 0);
    EXPECT_EQ(::listen(listener_.get(), 0), 0);
    for (int i = 0; i < 4; ++i) static_cast<void>(start_connect(address(), {}, fillers_.emplace_back()));
    std::this_thread::sleep_for(milliseconds(20));
  }
  [[nodiscard]] SocketAddress address() const { return own_address(listener_.get()); }
  static SocketAddress address_of_this_host() { return host_addresses().front(); }

 private:
  base::FileDescriptor listener_;
  std::vector<base::FileDescriptor> fillers_;
};

bool has_network() { return !Silent::address_of_this_host().is_loopback(); }

SocketAddress address_of_nobody() {
  auto const listener = listen_on(*SocketAddress::numeric("127.0.0.1", 0));
  return own_address(listener.get());
}

/// Outcome of one Connector.
struct Result {
  Connector::Outcome outcome{};  ///< kElsewhere: no address leads to the rank.
  Clock::duration time{};
  std::string error;
  std::string address;
};

Result connect(InstanceId const& instance, std::vector<SocketAddress> addresses, seconds limit = seconds(20)) {
  auto const epoll = make_epoll("test");
  auto const self = std::make_shared<HandshakeSelf>(self_of(1, random_bytes<InstanceId().size()>()));
  RankAddress rank_address;
  rank_address.instance = instance;
  Connector connector(self, /*peer=*/0, rank_address, std::move(addresses), /*sources=*/{}, epoll.get(), /*label=*/0);
  auto const start = Clock::now();
  Result result;
  while ((result.outcome = connector.advance()) == Connector::Outcome::kGoing && Clock::now() < start + limit) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  result.time = Clock::now() - start;
  result.error = connector.error();
  result.address = connector.address().to_string();
  return result;
}

TEST(Connector, ADeadAddressCostsAQuarterOfASecondHoweverManyThereAre) {
  auto const instance = random_bytes<InstanceId().size()>();
  Acceptor const acceptor(instance);
  if (!has_network()) GTEST_SKIP() << "this host has no address but those of loopback";
  Silent const first, second;
  auto const result = connect(instance, {first.address(), second.address(), acceptor.address()});
  EXPECT_EQ(result.outcome, Connector::Outcome::kConnected) << result.error;
  EXPECT_EQ(result.address, acceptor.address().to_string());
  EXPECT_GE(result.time, milliseconds(500));
  EXPECT_LT(result.time, milliseconds(2000));
}

TEST(Connector, AnAddressWhereNobodyListensCostsNoTime) {
  auto const instance = random_bytes<InstanceId().size()>();
  Acceptor const acceptor(instance);
  SocketAddress const nobody = address_of_nobody();
  auto const result = connect(instance, {nobody, acceptor.address()});
  EXPECT_EQ(result.outcome, Connector::Outcome::kConnected) << result.error;
  EXPECT_LT(result.time, milliseconds(250));
}

TEST(Connector, AnotherProcessBehindAnAddressIsPassedOver) {
  auto const instance = random_bytes<InstanceId().size()>();
  Acceptor const acceptor(instance);
  Acceptor const foreign(random_bytes<InstanceId().size()>());
  auto const result = connect(instance, {foreign.address(), acceptor.address()});
  EXPECT_EQ(result.outcome, Connector::Outcome::kConnected) << result.error;
  EXPECT_EQ(connect(instance, {foreign.address()}).outcome, Connector::Outcome::kElsewhere);
}

TEST(Connector, ThePeerSeesOneConnectionHoweverManyOfItsAddressesAnswer) {
  auto const instance = random_bytes<InstanceId().size()>();
  Acceptor const one(instance), other(instance);
  if (!has_network()) GTEST_SKIP() << "this host has no address but those of loopback";
  Silent const silent;
  for (int round = 0; round < 5; ++round) {
    auto const result = connect(instance, {silent.address(), one.address(), other.address()});
    EXPECT_EQ(result.outcome, Connector::Outcome::kConnected) << result.error;
  }
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(one.num_done() + other.num_done(), 5);
}

TEST(Connector, WithoutAnyGoodAddressAllAreNamed) {
  auto const instance = random_bytes<InstanceId().size()>();
  SocketAddress const nobody = address_of_nobody();
  auto const result = connect(instance, {nobody, SocketAddress::local("headway-test-nobody")});
  EXPECT_EQ(result.outcome, Connector::Outcome::kElsewhere);
  EXPECT_NE(result.error.find(nobody.to_string()), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("a local socket: "), std::string::npos) << result.error;
  EXPECT_EQ(connect(instance, {}).error, "it can be reached under no address");
}

TEST(Connector, TheAddressThatWorkedLastComesFirst) {
  RankAddress rank_address;
  rank_address.host = "host " + to_hex(random_bytes<4>());
  rank_address.addresses = {*SocketAddress::parse("10.0.0.1:5"), *SocketAddress::parse("10.0.0.2:5"),
                            *SocketAddress::parse("10.0.0.3:5")};
  remember_good_address(rank_address.host, *SocketAddress::parse("10.0.0.2:77"));
  auto const addresses = candidate_addresses(rank_address, "this host", Transport::kAuto);
  ASSERT_EQ(addresses.size(), 3U);
  EXPECT_EQ(addresses[0].to_string(), "10.0.0.2:5");
  EXPECT_EQ(addresses[1].to_string(), "10.0.0.1:5");
  rank_address.host += " another";
  EXPECT_EQ(candidate_addresses(rank_address, "this host", Transport::kAuto)[0].to_string(), "10.0.0.1:5");
}

}  // namespace
}  // namespace headway::comm
