// Descriptors go from mailbox to mailbox: needs no device.

#include "engines/nvlink/mailbox.hpp"

#include "headway/comm/status.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>

namespace headway::comm::nvlink {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

/// A file whose only content is `text`.
FileDescriptor file_of(std::string const& text) {
  FileDescriptor file(::memfd_create("headway-test", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(file.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return file;
}

std::string text_in(FileDescriptor const& file) {
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
  auto const first = file_of("first"), second = file_of("second"), third = file_of("third");
  sender.send(receiver.name(), nonce_of(1), {first.get(), second.get()}, 0);
  sender.send(receiver.name(), nonce_of(2), {third.get(), first.get()}, 0);
  auto const later = receiver.receive(nonce_of(2), Clock::now() + kPatience, 1, [] {});
  auto const sooner = receiver.receive(nonce_of(1), Clock::now() + kPatience, 1, [] {});
  EXPECT_EQ(text_in(later[0]), "third");
  EXPECT_EQ(text_in(later[1]), "first");
  EXPECT_EQ(text_in(sooner[0]), "first");
  EXPECT_EQ(text_in(sooner[1]), "second");
}

TEST(Mailbox, NamesThePeerFromWhichNothingCame) {
  Mailbox receiver, sender;
  auto const file = file_of("of somebody else");
  sender.send(receiver.name(), nonce_of(9), {file.get(), file.get()}, 0);
  try {
    static_cast<void>(receiver.receive(nonce_of(1), Clock::now() + std::chrono::milliseconds(50), 3, [] {}));
    FAIL() << "what somebody else sent was taken";
  } catch (SystemError const& error) {
    EXPECT_NE(std::string(error.what()).find("rank 3"), std::string::npos) << error.what();
  }
}

TEST(Mailbox, StopsWaitingWhenTheLookThrows) {
  Mailbox receiver;
  auto const fail = [] { throw std::runtime_error("the group has failed"); };
  EXPECT_THROW(static_cast<void>(receiver.receive(nonce_of(1), Clock::now() + kPatience, 3, fail)), std::runtime_error);
}

TEST(Mailbox, NamesThePeerWhoseMailboxIsGone) {
  Mailbox const sender;
  auto const file = file_of("nobody reads this");
  std::string const gone = Mailbox().name();
  EXPECT_THROW(sender.send(gone, nonce_of(1), {file.get(), file.get()}, 2), SystemError);
}

}  // namespace
}  // namespace headway::comm::nvlink
