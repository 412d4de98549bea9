// SPDX-License-Identifier: Apache-2.0

// Handshake: two sides in memory, without sockets.
//
// A handshake proves to each side that the other knows the secret, and compares the fields of both. wanted() is the
// number of bytes that a side waits for. A stranger is a peer that seems not to be a rank of this group.
//
// converse() carries messages back and forth until both are silent, so a test may look at every byte, change one, or
// replay an older one. The security tests do exactly that: they flip a bit in each byte that the connector sends, echo
// the connector's own messages, and reuse a recorded proof. None may end in a connection.

#include "bootstrap/handshake.hpp"

#include "headway/comm/status.hpp"
#include "system/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace headway::comm {
namespace {

using Outcome = Handshake::Outcome;
using Bytes = std::vector<std::byte>;

HandshakeSelf rank_of_two(int rank) {
  return {.rank = rank,
          .size = 2,
          .instance = random_bytes<InstanceId().size()>(),
          .secret = "correct horse",
          .fields = {{"size", "2"}, {"slot_bytes", "4096"}}};
}

void feed(Handshake& to, std::span<std::byte const> bytes) {
  while (!bytes.empty() && to.wanted() > 0) {
    auto const piece = bytes.first(std::min(bytes.size(), to.wanted()));
    to.receive(piece);
    bytes = bytes.subspan(piece.size());
  }
}

// Passes messages until both sides are silent. @returns all bytes that were sent.
Bytes converse(Handshake& connector, Handshake& acceptor) {
  Bytes all;
  for (;;) {
    auto const forth = connector.take_output();
    feed(acceptor, forth);
    auto const back = acceptor.take_output();
    feed(connector, back);
    all.insert(all.end(), forth.begin(), forth.end());
    all.insert(all.end(), back.begin(), back.end());
    if (forth.empty() && back.empty()) return all;
  }
}

/// The two sides of a handshake, and its result. The higher rank connects. Tests change `low` or `high` before shake().
struct Pair {
  HandshakeSelf low = rank_of_two(0);
  HandshakeSelf high = rank_of_two(1);
  Outcome low_outcome{};
  Outcome high_outcome{};
  std::string low_error;
  std::string high_error;
  Bytes sent;

  void shake() {
    auto connector = Handshake::connect(high, 0, low.instance);
    auto acceptor = Handshake::accept(low);
    sent = converse(connector, acceptor);
    low_outcome = acceptor.outcome();
    high_outcome = connector.outcome();
    low_error = acceptor.error();
    high_error = connector.error();
  }
};

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

TEST(Handshake, RanksThatAgreeFindEachOther) {
  Pair pair;
  auto connector = Handshake::connect(pair.high, 0, pair.low.instance);
  auto acceptor = Handshake::accept(pair.low);
  converse(connector, acceptor);
  EXPECT_EQ(connector.outcome(), Outcome::kDone);
  EXPECT_EQ(acceptor.outcome(), Outcome::kDone);
  EXPECT_EQ(acceptor.peer(), 1);
  EXPECT_EQ(acceptor.peer_instance(), pair.high.instance);
  EXPECT_EQ(connector.wanted(), 0U);
}

TEST(Handshake, TheSecretIsNeverSent) {
  Pair pair;
  pair.shake();
  auto const secret = std::as_bytes(std::span(pair.low.secret));
  EXPECT_EQ(std::search(pair.sent.begin(), pair.sent.end(), secret.begin(), secret.end()), pair.sent.end());
}

TEST(Handshake, AWrongSecretIsRefusedOnBothSides) {
  Pair pair;
  pair.high.secret = "wrong";
  pair.shake();
  EXPECT_EQ(pair.low_outcome, Outcome::kRefused);
  EXPECT_EQ(pair.high_outcome, Outcome::kRefused);
  EXPECT_TRUE(contains(pair.low_error, "secret")) << pair.low_error;
  EXPECT_TRUE(contains(pair.high_error, "secret")) << pair.high_error;
}

TEST(Handshake, ADifferentValueIsNamedWithBothValuesOnBothSides) {
  Pair pair;
  pair.high.fields[1].value = "8192";
  pair.shake();
  EXPECT_EQ(pair.low_outcome, Outcome::kDisagreement);
  EXPECT_EQ(pair.high_outcome, Outcome::kDisagreement);
  EXPECT_EQ(pair.low_error, "slot_bytes is 4096 at rank 0 and 8192 at rank 1");
  EXPECT_EQ(pair.high_error, "slot_bytes is 8192 at rank 1 and 4096 at rank 0");
}

TEST(Handshake, AFieldThatOnlyOneVersionKnowsIsNamed) {
  Pair pair;
  pair.low.fields.push_back({"colour", "blue"});
  pair.shake();
  EXPECT_EQ(pair.low_error, "colour is blue at rank 0 and not known at rank 1");
  EXPECT_EQ(pair.high_error, "colour is not known at rank 1 and blue at rank 0");
}

TEST(Handshake, AStrangerLearnsNothingOfDisagreements) {
  Pair pair;
  pair.high.secret = "wrong";
  pair.high.fields[1].value = "8192";
  pair.shake();
  EXPECT_EQ(pair.low_outcome, Outcome::kRefused);
}

TEST(Handshake, AnotherProcessAtTheSameAddressIsNotMistakenForTheRank) {
  Pair pair;
  auto connector = Handshake::connect(pair.high, 0, random_bytes<InstanceId().size()>());
  auto acceptor = Handshake::accept(pair.low);
  converse(connector, acceptor);
  EXPECT_EQ(acceptor.outcome(), Outcome::kStranger);
  EXPECT_EQ(connector.outcome(), Outcome::kStranger);
}

TEST(Handshake, ALowerOrUnknownRankIsNotAccepted) {
  for (int rank : {0, -1, 2, 1'000'000}) {
    Pair pair;
    pair.high.rank = rank;
    pair.shake();
    EXPECT_EQ(pair.low_outcome, Outcome::kDisagreement) << rank;
    EXPECT_NE(pair.high_outcome, Outcome::kDone) << rank;
  }
}

TEST(Handshake, AProofIsBoundToItsDirection) {
  // An attacker that echoes the connector's own messages must not pass for the acceptor.
  Pair pair;
  auto connector = Handshake::connect(pair.high, 0, pair.low.instance);
  auto acceptor = Handshake::accept(pair.low);
  feed(acceptor, connector.take_output());
  feed(connector, acceptor.take_output());
  feed(connector, connector.take_output());
  EXPECT_EQ(connector.outcome(), Outcome::kRefused);
}

TEST(Handshake, AProofOfAnEarlierHandshakeIsWorthless) {
  Pair pair;
  auto first = Handshake::connect(pair.high, 0, pair.low.instance);
  auto acceptor = Handshake::accept(pair.low);
  auto const hello = first.take_output();
  feed(acceptor, hello);
  feed(first, acceptor.take_output());
  auto const proof = first.take_output();
  auto again = Handshake::accept(pair.low);
  feed(again, hello);
  feed(again, proof);
  EXPECT_EQ(again.outcome(), Outcome::kRefused);
}

TEST(Handshake, EveryFlippedBitEndsInAnError) {
  Pair const pair;
  auto const conversation_with_flip = [&](std::size_t position) {
    auto connector = Handshake::connect(pair.high, 0, pair.low.instance);
    auto acceptor = Handshake::accept(pair.low);
    std::size_t seen = 0;
    bool flipped = false;
    for (bool silent = false; !silent;) {
      silent = true;
      auto forth = connector.take_output();
      for (auto& byte : forth) {
        if (seen++ == position) byte ^= std::byte{0x10}, flipped = true;
      }
      feed(acceptor, forth);
      auto const back = acceptor.take_output();
      feed(connector, back);
      silent = forth.empty() && back.empty();
    }
    EXPECT_FALSE(flipped && acceptor.outcome() == Outcome::kDone) << "byte " << position;
    return flipped;
  };
  std::size_t position = 0;
  while (conversation_with_flip(position)) ++position;
  EXPECT_GT(position, 100U);
}

TEST(Handshake, GarbageIsRefusedAfterItsFirstBytes) {
  auto acceptor = Handshake::accept(rank_of_two(0));
  std::string const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  feed(acceptor, std::as_bytes(std::span(request)));
  EXPECT_EQ(acceptor.outcome(), Outcome::kStranger);
  EXPECT_FALSE(acceptor.take_output().empty());
  EXPECT_EQ(acceptor.wanted(), 0U);
}

TEST(Handshake, NoLengthMakesItReserveMuchOrReadBeyondTheLimit) {
  auto acceptor = Handshake::accept(rank_of_two(0));
  auto prefix = encode_message(BootstrapMessageKind::kHello, {});
  for (std::size_t i = 8; i < 12; ++i) prefix[i] = std::byte{0xff};  // The length of the body.
  feed(acceptor, prefix);
  EXPECT_EQ(acceptor.outcome(), Outcome::kStranger);
}

}  // namespace
}  // namespace headway::comm
