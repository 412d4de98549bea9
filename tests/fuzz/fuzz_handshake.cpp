// SPDX-License-Identifier: Apache-2.0

// Fuzzes the code that reads the bytes of a stranger: a peer that has not proved yet to be a rank, by the group's
// secret.
//
// Idea: the first byte selects one of four modes: raw bytes to both sides of a handshake; the same bytes framed as
// messages, so that the code for their bodies is reached; a real handshake with one changed byte; the text of an
// address in the store.
//
// Example: input 2, 10, 0, 255, ... selects mode 2 and flips all bits of byte 10 that the connector sends. The rest of
// the input, if any, replaces all later bytes of that output. The acceptor must then not complete.
//
// Invariants: without the secret no side completes or learns a disagreement. In mode 2 the acceptor completes exactly
// if no byte was changed. A malformed address raises SystemError and nothing else. Decoded text has no control
// characters.
// Complexity: linear in the length of the input.

#include "bootstrap/handshake.hpp"
#include "bootstrap/rank_address.hpp"
#include "headway/comm/status.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace headway::comm;
using Bytes = std::vector<std::byte>;
using Input = std::span<std::byte const>;

/// One of two ranks. `instance` tells its process from others at the same address; `fields` must be equal on all ranks.
HandshakeSelf self_of(int rank) {
  HandshakeSelf self{.rank = rank, .size = 2, .instance = {}, .secret = "secret", .fields = {{"a", "1"}, {"b", "2"}}};
  self.instance.fill(static_cast<std::byte>(rank + 1));
  return self;
}

void feed(Handshake& to, Input bytes) {
  while (!bytes.empty() && to.wanted() > 0) {
    auto const piece = bytes.first(std::min(bytes.size(), to.wanted()));
    to.receive(piece);
    bytes = bytes.subspan(piece.size());
  }
}

/// Has the peer proved to this side that it knows the secret?
bool is_convinced(Handshake const& handshake) {
  return handshake.outcome() == Handshake::Outcome::kDone || handshake.outcome() == Handshake::Outcome::kDisagreement;
}

/// Sends the input to an acceptor and to a connector.
void talk_to_stranger(Input input) {
  auto acceptor = Handshake::accept(self_of(0));
  feed(acceptor, input);
  auto connector = Handshake::connect(self_of(1), 0, self_of(0).instance);
  feed(connector, input);
  // Without the secret no side may complete.
  if (is_convinced(acceptor) || is_convinced(connector)) std::abort();
}

/// Frames the input as messages, so that the code for their bodies is reached.
void talk_in_messages(Input input) {
  Bytes stream;
  while (input.size() >= 2) {
    auto const kind = static_cast<BootstrapMessageKind>(1 + std::to_integer<int>(input[0]) % 5);
    std::size_t const length = std::min<std::size_t>(std::to_integer<std::size_t>(input[1]) * 2, input.size() - 2);
    auto const message = encode_message(kind, input.subspan(2, length));
    stream.insert(stream.end(), message.begin(), message.end());
    input = input.subspan(2 + length);
  }
  talk_to_stranger(stream);
}

/// Changes one byte that the connector sends in a real handshake. The rest of the input, if any, replaces all bytes
/// that follow it in the same output.
void talk_with_interference(Input input) {
  if (input.size() < 3) return;
  std::size_t const position = std::to_integer<std::size_t>(input[0]) | std::to_integer<std::size_t>(input[1]) << 8;
  std::byte const change = input[2];
  Input const replacement = input.subspan(3);
  auto acceptor = Handshake::accept(self_of(0));
  auto connector = Handshake::connect(self_of(1), 0, self_of(0).instance);
  std::size_t seen = 0;
  bool changed = false;
  for (;;) {
    Bytes forth = connector.take_output();
    if (position >= seen && position < seen + forth.size() && change != std::byte{0}) {
      auto const at = static_cast<std::ptrdiff_t>(position - seen);
      forth[position - seen] ^= change;
      changed = true;
      if (!replacement.empty()) {
        forth.erase(forth.begin() + at + 1, forth.end());
        forth.insert(forth.end(), replacement.begin(), replacement.end());
      }
    }
    seen += forth.size();
    feed(acceptor, forth);
    Bytes const back = acceptor.take_output();
    feed(connector, back);
    if (forth.empty() && back.empty()) break;
  }
  if (changed == (acceptor.outcome() == Handshake::Outcome::kDone)) std::abort();
}

void read_rank_address(Input input) {
  std::string_view const text(reinterpret_cast<char const*>(input.data()), input.size());
  try {
    // Rank 3 only appears in the text of an error.
    auto const rank_address = decode_rank_address(text, 3);
    static_cast<void>(decode_rank_address(encode_rank_address(rank_address), 3));
  } catch (SystemError const&) {
    // SystemError is the only allowed failure.
  }
  for (char const c : decode_text(input)) {
    if (static_cast<unsigned char>(c) < 0x20) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const input = std::as_bytes(std::span(data, size));
  if (input.empty()) return 0;
  auto const rest = input.subspan(1);
  switch (std::to_integer<int>(input[0]) % 4) {
    case 0:
      talk_to_stranger(rest);
      break;
    case 1:
      talk_in_messages(rest);
      break;
    case 2:
      talk_with_interference(rest);
      break;
    default:
      read_rank_address(rest);
  }
  return 0;
}
