// SPDX-License-Identifier: Apache-2.0

// Links: peers dial a listener and become groups of two, each of which fails alone. Strangers, wrong secrets and silent
// peers delay nobody.

#include "headway/comm/link.hpp"

#include "bootstrap/socket_store.hpp"
#include "cpu_time.hpp"
#include "system/sockets.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <future>
#include <string>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong(20);

GroupOptions options_of(Transport transport = Transport::kAuto) {
  GroupOptions options;
  options.transport = transport;
  options.slot_bytes = 4096;
  options.timeout = kLong;
  options.connect_timeout = kLong;
  options.name = "job";
  options.secret = "a secret of the job";
  return options;
}

/// Sends a number from one end of a link and receives it at the other. @returns what came.
int pass(Group& from, Group& to, int number) {
  std::array<int, 1> const out{number};
  std::array<int, 1> in{};
  auto const received = to.receive(std::as_writable_bytes(std::span(in)), from.rank(), 7, 0);
  auto const sent = from.send(std::as_bytes(std::span(out)), to.rank(), 7, 0);
  EXPECT_TRUE(from.wait(*sent).ok());
  EXPECT_TRUE(to.wait(*received).ok());
  return in[0];
}

/// Text of the SystemError that `call` throws.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (SystemError const& error) {
    return error.what();
  }
  return "";
}

/// Joins a peer. @returns the listener's end, then the other.
std::pair<std::unique_ptr<Group>, std::unique_ptr<Group>> join(LinkListener& listener, GroupOptions const& options) {
  auto dialled = std::async(std::launch::async, [&] { return dial(listener.address(), options); });
  auto accepted = listener.accept(kLong);
  return {std::move(accepted), dialled.get()};
}

base::FileDescriptor connect_raw(std::string const& address) {
  base::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto const parsed = SocketAddress::parse(address);
  EXPECT_EQ(::connect(socket.get(), parsed->raw(), parsed->length()), 0);
  return socket;
}

void await_refusals(LinkListener const& listener, std::uint64_t count) {
  auto const until = Clock::now() + kLong;
  while (listener.refusals().count < count && Clock::now() < until) std::this_thread::sleep_for(milliseconds(5));
}

class LinkTest : public testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Transports, LinkTest, testing::Values(Transport::kAuto, Transport::kTcp));

TEST_P(LinkTest, JoinsTwoProcessesThatSendBothWays) {
  LinkListener listener("127.0.0.1:0", options_of(GetParam()));
  auto const [server, client] = join(listener, options_of(GetParam()));
  EXPECT_EQ(server->rank(), 0);
  EXPECT_EQ(client->rank(), 1);
  EXPECT_EQ(pass(*client, *server, 5), 5);
  EXPECT_EQ(pass(*server, *client, 6), 6);
}

TEST_P(LinkTest, EachLinkFailsAlone) {
  LinkListener listener("127.0.0.1:0", options_of(GetParam()));
  std::vector<std::future<std::unique_ptr<Group>>> dialling;
  for (int peer = 0; peer < 6; ++peer) {
    dialling.push_back(
        std::async(std::launch::async, [&] { return dial(listener.address(), options_of(GetParam())); }));
  }
  std::vector<std::unique_ptr<Group>> servers, clients;
  for (std::size_t peer = 0; peer < dialling.size(); ++peer) servers.push_back(listener.accept(kLong));
  for (auto& each : dialling) clients.push_back(each.get());
  std::vector<Group*> server_of(clients.size());
  for (std::size_t peer = 0; peer < clients.size(); ++peer) {
    for (auto const& server : servers) {
      if (server->monitor().generation() == clients[peer]->monitor().generation()) server_of[peer] = server.get();
    }
    ASSERT_NE(server_of[peer], nullptr);
  }
  clients[2].reset();
  std::array<std::byte, 4> block{};
  auto const never = server_of[2]->receive(block, 1, 7, 0);
  EXPECT_EQ(server_of[2]->wait(*never).code(), StatusCode::kPeerLost);
  for (std::size_t peer = 0; peer < clients.size(); ++peer) {
    if (peer == 2) continue;
    EXPECT_EQ(pass(*clients[peer], *server_of[peer], static_cast<int>(peer)), static_cast<int>(peer));
  }
  // A peer that dials again gets a new link.
  auto const [server, client] = join(listener, options_of(GetParam()));
  EXPECT_EQ(pass(*client, *server, 9), 9);
  EXPECT_NE(server->monitor().generation(), server_of[2]->monitor().generation());
}

TEST(Link, APeerWithAnotherSecretIsRefusedAndOthersAreNot) {
  LinkListener listener("127.0.0.1:0", options_of());
  auto wrong = options_of();
  wrong.secret = "another secret";
  auto const error = error_of([&] { static_cast<void>(dial(listener.address(), wrong)); });
  EXPECT_NE(error.find("link 'job' to " + listener.address()), std::string::npos) << error;
  EXPECT_NE(error.find("secret"), std::string::npos) << error;
  auto const [server, client] = join(listener, options_of());
  EXPECT_EQ(pass(*client, *server, 1), 1);
  await_refusals(listener, 1);
  EXPECT_EQ(listener.refusals().count, 1U);
}

TEST(Link, AnotherNameAndOtherSettingsAreNamed) {
  LinkListener listener("127.0.0.1:0", options_of());
  auto other = options_of();
  other.name = "other job";
  auto error = error_of([&] { static_cast<void>(dial(listener.address(), other)); });
  EXPECT_NE(error.find("has the link 'job', and this is 'other job'"), std::string::npos) << error;
  other = options_of();
  other.slot_bytes = 8192;
  error = error_of([&] { static_cast<void>(dial(listener.address(), other)); });
  EXPECT_NE(error.find("slot_bytes"), std::string::npos) << error;
  await_refusals(listener, 2);
  EXPECT_EQ(listener.refusals().count, 2U);
}

TEST(Link, StrangersAndSilentPeersDelayNobody) {
  LinkListener listener("127.0.0.1:0", options_of());
  auto const silent = connect_raw(listener.address());
  auto const stranger = connect_raw(listener.address());
  std::string const text = "GET / HTTP/1.1\r\nHost: server\r\n\r\n";
  ASSERT_EQ(::send(stranger.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  auto const begin = Clock::now();
  auto const [server, client] = join(listener, options_of());
  EXPECT_EQ(pass(*client, *server, 3), 3);
  EXPECT_LT(Clock::now() - begin, seconds(4)) << "it waited for the silent peer";
  await_refusals(listener, 1);
  EXPECT_NE(listener.refusals().last_reason.find("protocol"), std::string::npos) << listener.refusals().last_reason;
}

TEST(Link, SilentStrangersGiveTheirPlacesUp) {
  LinkListener listener("127.0.0.1:0", options_of());
  std::vector<base::FileDescriptor> silent;
  for (int i = 0; i < 3 * LinkListener::kMostPending; ++i) silent.push_back(connect_raw(listener.address()));
  auto const begin = Clock::now();
  auto const [server, client] = join(listener, options_of());
  EXPECT_EQ(pass(*client, *server, 3), 3);
  EXPECT_LT(Clock::now() - begin, seconds(4)) << "strangers kept the places";
  EXPECT_NE(listener.refusals().last_reason.find("sent no name"), std::string::npos) << listener.refusals().last_reason;
}

TEST(Link, APeerWhoseConnectionEndsUnansweredDialsAgain) {
  // A listener that closes each connection without a word, as one that is shut down does.
  base::FileDescriptor raw = listen_on(*SocketAddress::parse("127.0.0.1:0"));
  auto const address = own_address(raw.get()).to_string();
  auto dialled = std::async(std::launch::async, [&] { return dial(address, options_of()); });
  for (int closed = 0; closed < 3;) {
    base::FileDescriptor const accepted(::accept4(raw.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (accepted.valid()) ++closed;
    std::this_thread::sleep_for(milliseconds(5));
  }
  raw.reset();
  LinkListener listener(address, options_of());
  auto const server = listener.accept(kLong);
  ASSERT_NE(server, nullptr);
  auto const client = dialled.get();
  EXPECT_EQ(pass(*client, *server, 6), 6);
}

TEST(Link, ClosingEndsLinksThatNobodyAccepted) {
  LinkListener listener("127.0.0.1:0", options_of());
  auto const client = dial(listener.address(), options_of());
  listener.close();
  std::array<std::byte, 4> block{};
  auto const never = client->receive(block, 0, 7, 0);
  EXPECT_EQ(client->wait(*never).code(), StatusCode::kPeerLost);
  EXPECT_EQ(listener.accept(milliseconds(10)), nullptr);
}

TEST(Link, WrongOptionsAreFoundAtOnce) {
  auto options = options_of();
  options.slot_bytes = 1;
  EXPECT_THROW(LinkListener("127.0.0.1:0", options), UsageError);
  EXPECT_THROW(static_cast<void>(dial("127.0.0.1:1", options)), UsageError);
  options = options_of();
  options.secret = "short";
  EXPECT_THROW(LinkListener("127.0.0.1:0", options), UsageError);
}

TEST(Link, AForkedChildLeavesTheListenerToItsParent) {
  auto listener = std::make_unique<LinkListener>("127.0.0.1:0", options_of());
  pid_t const child = ::fork();
  if (child == 0) {
    listener.reset();
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  auto const [server, client] = join(*listener, options_of());
  EXPECT_EQ(pass(*client, *server, 2), 2);
}

TEST(Link, APeerMayDialBeforeAnyoneListens) {
  std::string address;
  {
    LinkListener const listener("127.0.0.1:0", options_of());
    address = listener.address();
  }
  auto dialled = std::async(std::launch::async, [&] { return dial(address, options_of()); });
  std::this_thread::sleep_for(milliseconds(200));
  LinkListener listener(address, options_of());
  auto const server = listener.accept(kLong);
  ASSERT_NE(server, nullptr);
  auto const client = dialled.get();
  EXPECT_EQ(pass(*client, *server, 4), 4);
}

TEST(Link, AListenerThatStartsAgainGetsItsPort) {
  auto listener = std::make_unique<LinkListener>("127.0.0.1:0", options_of());
  auto const address = listener->address();
  for (int life = 0; life < 5; ++life) {
    for (int peer = 0; peer < 4; ++peer) {
      auto const [server, client] = join(*listener, options_of());
      EXPECT_EQ(pass(*client, *server, peer), peer);
    }
    EXPECT_THROW(LinkListener(address, options_of()), SystemError) << "two listeners have one port";
    listener.reset();
    listener = std::make_unique<LinkListener>(address, options_of());
  }
}

TEST(Link, NobodyListensAndTheAddressIsNamed) {
  auto options = options_of();
  options.connect_timeout = milliseconds(300);
  auto error = error_of([&] { static_cast<void>(dial("127.0.0.1:1", options)); });
  EXPECT_NE(error.find("127.0.0.1:1: nobody answers within 300 ms"), std::string::npos) << error;
  EXPECT_NE(error.find("refused"), std::string::npos) << error;
  error = error_of([&] { static_cast<void>(dial("no-such-host.invalid:7000", options)); });
  EXPECT_NE(error.find("the name is not known"), std::string::npos) << error;
}

TEST(Link, AWrongAddressIsNamed) {
  for (char const* const address : {"", "7000", ":7000", "host", "host:", "host:70000", "::1:7000", "host:7x"}) {
    EXPECT_THROW(static_cast<void>(dial(address, options_of())), UsageError) << address;
  }
  EXPECT_THROW(LinkListener("a-name:7000", options_of()), UsageError);
  EXPECT_EQ(LinkListener("[::1]:0", options_of()).address().rfind("[::1]:", 0), 0U);
}

TEST(Link, WithoutASecretNobodyListensOrDials) {
  auto options = options_of();
  options.secret.clear();
  EXPECT_THROW(LinkListener("127.0.0.1:0", options), UsageError);
  EXPECT_THROW(static_cast<void>(dial("127.0.0.1:1", options)), UsageError);
  EXPECT_THROW(LinkListener("127.0.0.1:0", options_of(Transport::kInproc)), UsageError);
}

TEST(Link, ALinkOutlivesItsListener) {
  auto listener = std::make_unique<LinkListener>("127.0.0.1:0", options_of());
  auto const [server, client] = join(*listener, options_of());
  listener.reset();
  EXPECT_EQ(pass(*client, *server, 8), 8);
  EXPECT_NO_THROW(server->options().while_connecting());
}

TEST(Link, ClosingEndsAWaitAndAJoin) {
  auto listener = std::make_unique<LinkListener>("127.0.0.1:0", options_of());
  auto const silent = connect_raw(listener->address());
  auto waiting = std::async(std::launch::async, [&] { return listener->accept(kLong) == nullptr; });
  std::this_thread::sleep_for(milliseconds(100));
  auto const begin = Clock::now();
  listener->close();
  EXPECT_TRUE(waiting.get());
  listener.reset();
  EXPECT_LT(Clock::now() - begin, seconds(3));
}

TEST(Link, AListenerSleepsAfterAJoin) {
  LinkListener listener("127.0.0.1:0", options_of());
  auto const [server, client] = join(listener, options_of());
  EXPECT_EQ(pass(*client, *server, 1), 1);
  std::this_thread::sleep_for(milliseconds(100));
  auto const before = process_cpu_time();
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(process_cpu_time() - before, milliseconds(100));
}

TEST(Link, NobodyDialsAndTheWaitEnds) {
  LinkListener listener("127.0.0.1:0", options_of());
  EXPECT_EQ(listener.accept(milliseconds(50)), nullptr);
}

TEST(Link, LinksThatNobodyAcceptsAreLimited) {
  LinkListener listener("127.0.0.1:0", options_of(Transport::kTcp));
  std::vector<std::unique_ptr<Group>> clients;
  for (int peer = 0; peer < LinkListener::kMostPending; ++peer) {
    clients.push_back(dial(listener.address(), options_of(Transport::kTcp)));
  }
  auto hasty = options_of(Transport::kTcp);
  hasty.connect_timeout = milliseconds(300);
  auto const error = error_of([&] { static_cast<void>(dial(listener.address(), hasty)); });
  EXPECT_NE(error.find("did not send 'name/0' within"), std::string::npos) << "error: " << error;
  for (std::size_t peer = 0; peer < clients.size(); ++peer) EXPECT_NE(listener.accept(kLong), nullptr);
}

/// Two stores over a pair of sockets.
class SocketStoreTest : public testing::Test {
 protected:
  SocketStoreTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    raw_ = ends[1];
    one_.emplace(base::FileDescriptor(ends[0]), "the peer");
    other_.emplace(base::FileDescriptor(ends[1]), "the peer");
  }
  std::optional<SocketStore> one_, other_;
  int raw_ = -1;
};

TEST_F(SocketStoreTest, ValuesComeInAnyOrderAndStay) {
  one_->set("a", std::string(10'000, 'x'));
  one_->set("b", "");
  EXPECT_EQ(other_->get("b", seconds(1)), "");
  EXPECT_EQ(other_->get("a", seconds(1)), std::string(10'000, 'x'));
  EXPECT_EQ(other_->get("a", seconds(1)).size(), 10'000U);
  EXPECT_EQ(one_->get("a", seconds(1)).size(), 10'000U) << "a value is visible to its own side, too";
}

TEST_F(SocketStoreTest, AKeyThatDoesNotComeIsNamed) {
  auto const error = error_of([&] { static_cast<void>(other_->get("a", milliseconds(20))); });
  EXPECT_EQ(error, "the peer did not send 'a' within 20 ms");
}

TEST_F(SocketStoreTest, AClosedConnectionEndsTheWaitAfterItsValues) {
  one_->set("a", "1");
  one_.reset();
  EXPECT_EQ(other_->get("a", seconds(1)), "1");
  auto const begin = Clock::now();
  auto const error = error_of([&] { static_cast<void>(other_->get("b", kLong)); });
  EXPECT_EQ(error, "the peer closed the connection before it sent 'b'");
  EXPECT_LT(Clock::now() - begin, seconds(2));
  EXPECT_THROW(other_->set("c", "1"), SystemError);
}

TEST_F(SocketStoreTest, APeerCannotSendManyValuesOrLongOnes) {
  EXPECT_THROW(one_->set("a", std::string(SocketStore::kMostBytes, 'x')), UsageError);
  for (std::size_t i = 0; i <= SocketStore::kMostValues; ++i) one_->set(std::to_string(i), "");
  auto error = error_of([&] { static_cast<void>(other_->get("none", seconds(1))); });
  EXPECT_NE(error.find("too many values"), std::string::npos) << error;
  std::array<std::uint32_t, 3> const prefix{0x59574448, 8, 1U << 20};  // Magic, kind, length.
  ASSERT_EQ(::send(raw_, prefix.data(), sizeof prefix, 0), static_cast<ssize_t>(sizeof prefix));
  error = error_of([&] { static_cast<void>(one_->get("none", seconds(1))); });
  EXPECT_NE(error.find("too long"), std::string::npos) << error;
}

TEST_F(SocketStoreTest, AWaitCanBeInterrupted) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  base::FileDescriptor const peer(ends[1]);
  SocketStore store(base::FileDescriptor{ends[0]}, "the peer", [] { throw std::runtime_error("enough"); });
  EXPECT_THROW(static_cast<void>(store.get("a", kLong)), std::runtime_error);
}

}  // namespace
}  // namespace headway::comm
