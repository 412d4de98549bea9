// SPDX-License-Identifier: Apache-2.0

// File descriptors go from mailbox to mailbox. Needs no device.
//
// A mailbox is a datagram socket of this host. Each message carries two descriptors and a nonce, random bytes that the
// receiver gave to one peer. Messages with a nonce that is not expected are dropped. The rank that send() and receive()
// take is for error texts only.

#include "device/peer_copy/mailbox.hpp"

#include "headway/comm/status.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>

namespace headway::comm::peer_copy {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

/// A file that contains only `text`.
base::FileDescriptor file_of(std::string const& text) {
  base::FileDescriptor file(::memfd_create("headway-test", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(file.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return file;
}

std::string text_in(base::FileDescriptor const& file) {
  std::array<char, 64> text{};
  ssize_t const count = ::pread(file.get(), text.data(), text.size(), 0);
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
}

Nonce nonce_of(int value) {
  Nonce nonce{};
  nonce[0] = static_cast<std::byte>(value);
  return nonce;
}

TEST(Mailbox, GivesWhatCameWithANonceInAnyOrder) {
  Mailbox receiver, sender;
  receiver.expect(nonce_of(1));
  receiver.expect(nonce_of(2));
  auto const first = file_of("first"), second = file_of("second"), third = file_of("third");
  ASSERT_EQ(sender.send(receiver.name(), nonce_of(1), {first.get(), second.get()}, 0), Delivery::kDone);
  ASSERT_EQ(sender.send(receiver.name(), nonce_of(2), {third.get(), first.get()}, 0), Delivery::kDone);
  auto const later = receiver.receive(nonce_of(2), Clock::now() + kPatience, 1, [] {});
  auto const sooner = receiver.receive(nonce_of(1), Clock::now() + kPatience, 1, [] {});
  EXPECT_EQ(text_in(later[0]), "third");
  EXPECT_EQ(text_in(later[1]), "first");
  EXPECT_EQ(text_in(sooner[0]), "first");
  EXPECT_EQ(text_in(sooner[1]), "second");
}

TEST(Mailbox, GivesSeveralMessagesInTheirOrderUntilTheyAreForgotten) {
  Mailbox receiver, sender;
  receiver.expect(nonce_of(1));
  for (auto const* const text : {"first", "second", "third"}) {
    auto const file = file_of(text);
    ASSERT_EQ(sender.send(receiver.name(), nonce_of(1), {file.get(), file.get()}, 0), Delivery::kDone);
  }
  auto const receive = [&](auto patience) { return receiver.receive(nonce_of(1), Clock::now() + patience, 1, [] {}); };
  EXPECT_EQ(text_in(receive(kPatience)[0]), "first");
  EXPECT_EQ(text_in(receive(kPatience)[1]), "second");
  receiver.forget(nonce_of(1));
  EXPECT_THROW(static_cast<void>(receive(std::chrono::milliseconds(10))), SystemError);
}

TEST(Mailbox, NamesThePeerFromWhichNothingCame) {
  Mailbox receiver, sender;
  auto const file = file_of("of somebody else");
  ASSERT_EQ(sender.send(receiver.name(), nonce_of(9), {file.get(), file.get()}, 0), Delivery::kDone);
  try {
    static_cast<void>(receiver.receive(nonce_of(1), Clock::now() + std::chrono::milliseconds(50), 3, [] {}));
    FAIL() << "what somebody else sent was taken";
  } catch (SystemError const& error) {
    EXPECT_NE(std::string(error.what()).find("rank 3"), std::string::npos) << error.what();
  }
}

TEST(Mailbox, SleepsThoughTheNonceIsNotExpectedAndAMessageIsThere) {
  Mailbox receiver, sender;
  auto const file = file_of("of somebody else");
  ASSERT_EQ(sender.send(receiver.name(), nonce_of(9), {file.get(), file.get()}, 0), Delivery::kDone);
  int num_calls = 0;
  auto const deadline = Clock::now() + std::chrono::milliseconds(300);
  EXPECT_THROW(static_cast<void>(receiver.receive(nonce_of(1), deadline, 3, [&] { ++num_calls; })), SystemError);
  EXPECT_LT(num_calls, 20) << "several calls a second, not as many as possible";
}

TEST(Mailbox, StopsWaitingWhenTheCallbackThrows) {
  Mailbox receiver;
  auto const fail = [] { throw std::runtime_error("the group has failed"); };
  EXPECT_THROW(static_cast<void>(receiver.receive(nonce_of(1), Clock::now() + kPatience, 3, fail)), std::runtime_error);
}

TEST(Mailbox, SaysThatThisProcessMayHaveNoMoreDescriptors) {
  Mailbox receiver, sender;
  receiver.expect(nonce_of(1));
  auto const file = file_of("too many");
  ASSERT_EQ(sender.send(receiver.name(), nonce_of(1), {file.get(), file.get()}, 0), Delivery::kDone);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit const none{.rlim_cur = static_cast<rlim_t>(file.get()), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::exception_ptr error;  // Checked later: sanitizers need file descriptors for any check.
  try {
    static_cast<void>(receiver.receive(nonce_of(1), Clock::now() + kPatience, 1, [] {}));
  } catch (...) {
    error = std::current_exception();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(error != nullptr);
  try {
    std::rethrow_exception(error);
  } catch (SystemError const& refused) {
    EXPECT_NE(std::string(refused.what()).find("Too many open files"), std::string::npos) << refused.what();
  }
}

TEST(Mailbox, SaysThatAMailboxIsGoneOrFullAndDoesNotWait) {
  Mailbox const sender;
  auto const file = file_of("nobody reads this");
  auto const send = [&](std::string const& to) { return sender.send(to, nonce_of(1), {file.get(), file.get()}, 2); };
  std::string const gone = Mailbox().name();
  EXPECT_EQ(send(gone), Delivery::kGone);
  Mailbox receiver;
  receiver.expect(nonce_of(1));
  int num_sent = 0;
  while (num_sent < 10'000 && send(receiver.name()) == Delivery::kDone) ++num_sent;
  EXPECT_LT(num_sent, 10'000);
  EXPECT_EQ(send(receiver.name()), Delivery::kFull);
  EXPECT_EQ(text_in(receiver.receive(nonce_of(1), Clock::now() + kPatience, 1, [] {})[0]), "nobody reads this");
  EXPECT_EQ(send(receiver.name()), Delivery::kDone);
}

}  // namespace
}  // namespace headway::comm::peer_copy
