// SPDX-License-Identifier: Apache-2.0

// Mutual authentication of two ranks; handshake.hpp shows the messages.
//
// Each side proves that it knows the secret without sending it: the proof is an HMAC over both hellos, each of which
// has a fresh random nonce. A recorded proof is therefore worthless, and one side's proof cannot be sent back as the
// other's, since the role is part of the text under the HMAC.
//
// Example: a process of another job connects by mistake. Its hello names another instance (random number of a process):
// kStranger, and the rank goes on. A rank with a wrong secret has a good hello, but its proof differs: kRefused. A rank
// with another slot_bytes proves the secret: kDisagreement, which ends the bootstrap at all ranks with an error that
// names the field.

#include "bootstrap/handshake.hpp"

#include "bootstrap/bytes.hpp"
#include "headway/comm/status.hpp"
#include "system/random.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace headway::comm {
namespace {

constexpr std::size_t kNonceBytes = 32;
constexpr std::uint32_t kMaxFields = 64;
constexpr std::size_t kMaxFieldBytes = 4096;
constexpr std::size_t kMaxTextBytes = 2048;

std::string const* find_field(std::vector<AgreementField> const& fields, std::string_view name) {
  auto const found = std::ranges::find(fields, name, &AgreementField::name);
  return found == fields.end() ? nullptr : &found->value;
}

std::vector<std::byte> encode_fields(std::vector<AgreementField> const& fields) {
  ByteWriter writer;
  writer.integer(static_cast<std::uint32_t>(fields.size()));
  for (auto const& field : fields) writer.text(field.name).text(field.value);
  return writer.take();
}

std::string shown(std::string const* value) { return value ? (value->empty() ? "\"\"" : *value) : "not known"; }

// Replaces control characters: text from the other side reaches error messages and terminals.

}  // namespace

// Replaces control characters: text from the other side reaches error messages and terminals.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::vector<std::byte> encode_text(std::string_view text) {
  return ByteWriter().text(text.substr(0, kMaxTextBytes)).take();
}

std::string decode_text(std::span<std::byte const> body) {
  ByteReader reader(body);
  std::string text = reader.text(kMaxTextBytes);
  return reader.complete() ? printable(std::move(text)) : "a reason that cannot be read";
}

Handshake::Handshake(Role role, Self self, int peer, InstanceId peer_instance)
    : role_(role),
      self_(std::move(self)),
      peer_(peer),
      peer_instance_(peer_instance),
      reader_(kMaxMessageBody, kMessagePrefixBytes + kMaxMessageBody) {}

Handshake Handshake::connect(HandshakeSelf self, int peer, InstanceId peer_instance) {
  return connect(std::make_shared<HandshakeSelf const>(std::move(self)), peer, peer_instance);
}

Handshake Handshake::accept(HandshakeSelf self) {
  return accept(std::make_shared<HandshakeSelf const>(std::move(self)));
}

Handshake Handshake::connect(Self self, int peer, InstanceId peer_instance) {
  Handshake handshake(Role::kConnector, std::move(self), peer, peer_instance);
  handshake.send_hello();
  return handshake;
}

Handshake Handshake::accept(Self self) { return {Role::kAcceptor, std::move(self), -1, InstanceId{}}; }

std::size_t Handshake::wanted() const { return outcome_ == Outcome::kGoing ? reader_.wanted() : 0; }

void Handshake::receive(std::span<std::byte const> bytes) {
  expects(bytes.size() <= wanted(), "more bytes than the handshake asked for");
  reader_.feed(bytes);
  if (!reader_.error().empty()) {
    std::string const why(reader_.error());
    refuse(Outcome::kStranger, why, "this is a rank of a Headway group, and what you sent is not its protocol");
  } else if (auto const message = reader_.take()) {
    on_message(*message);
  }
}

std::vector<std::byte> Handshake::take_output() { return std::exchange(output_, {}); }

void Handshake::on_message(Message const& message) {
  bool const has_hello = !peer_hello_.empty();
  if (message.kind == BootstrapMessageKind::kHello && !has_hello) {
    on_hello(message.body);
  } else if (message.kind == BootstrapMessageKind::kProof && has_hello) {
    on_proof(message.body);
  } else if (message.kind == BootstrapMessageKind::kRefusal) {
    on_refusal(message.body);
  } else {
    refuse(Outcome::kStranger, "it sent its messages out of order", "your messages are out of order");
  }
}

// Layout: role, own rank, own instance, rank and instance of the other side, nonce, fields. An acceptor knows the other
// side from its hello, which comes first.
void Handshake::send_hello() {
  ByteWriter writer;
  writer.integer(static_cast<std::uint32_t>(role_))
      .integer(static_cast<std::uint32_t>(self_->rank))
      .raw(self_->instance)
      .integer(static_cast<std::uint32_t>(peer_))
      .raw(peer_instance_)
      .raw(random_bytes<kNonceBytes>())
      .raw(encode_fields(self_->fields));
  own_hello_ = writer.take();
  auto const message = encode_message(BootstrapMessageKind::kHello, own_hello_);
  output_.insert(output_.end(), message.begin(), message.end());
}

void Handshake::send_proof() {
  auto const message = encode_message(BootstrapMessageKind::kProof, proof_of(role_));
  output_.insert(output_.end(), message.begin(), message.end());
}

void Handshake::on_hello(std::span<std::byte const> body) {
  if (auto const problem = check_hello(body); !problem.empty()) {
    refuse(Outcome::kStranger, problem, "this is rank " + std::to_string(self_->rank) + " and not whom you look for");
    return;
  }
  peer_hello_.assign(body.begin(), body.end());
  // Bytes after the acceptor's proof may belong to later readers, so no more than the proof is requested. A refusal in
  // its place ends the stream.
  reader_ = MessageReader(kMaxMessageBody, kMessagePrefixBytes + std::tuple_size_v<Digest>);
  if (role_ == Role::kAcceptor) {
    send_hello();
  } else {
    send_proof();
  }
}

// @returns the error in the other side's hello, or an empty text after storing its content.
std::string Handshake::check_hello(std::span<std::byte const> body) {
  ByteReader reader(body);
  std::uint32_t const role = reader.integer();
  auto const rank = static_cast<int>(reader.integer());
  InstanceId instance{};
  reader.raw(instance);
  auto const target = static_cast<int>(reader.integer());
  InstanceId target_instance{};
  reader.raw(target_instance);
  std::array<std::byte, kNonceBytes> nonce{};
  reader.raw(nonce);
  auto const raw_fields = body.last(reader.rest());
  std::uint32_t const num_fields = reader.integer();
  if (!reader.ok() || num_fields > kMaxFields) return "its hello cannot be read";
  // In the usual case the raw bytes are equal, and no field is parsed.
  fields_agree_ = std::ranges::equal(raw_fields, encode_fields(self_->fields));
  std::vector<AgreementField> fields(fields_agree_ ? 0 : num_fields);
  for (auto& field : fields) {
    field.name = printable(reader.text(kMaxFieldBytes));
    field.value = printable(reader.text(kMaxFieldBytes));
  }
  if (!fields_agree_ && !reader.complete()) return "its hello cannot be read";
  if (role == static_cast<std::uint32_t>(role_)) return "it takes the same part in the handshake";
  if (target != self_->rank || target_instance != self_->instance) return "it looks for another process";
  if (role_ == Role::kConnector && (rank != peer_ || instance != peer_instance_)) return "it is another process";
  peer_ = rank;
  peer_instance_ = instance;
  peer_fields_ = std::move(fields);
  return {};
}

void Handshake::on_proof(std::span<std::byte const> body) {
  Role const other = role_ == Role::kConnector ? Role::kAcceptor : Role::kConnector;
  if (!equal_in_constant_time(body, proof_of(other))) {
    std::string const text = "the secret of rank " + std::to_string(self_->rank) +
                             " and that of the process that calls "
                             "itself rank " +
                             std::to_string(peer_) + " differ";
    refuse(Outcome::kRefused, text, text);
    return;
  }
  std::string const differing = differences();
  if (role_ == Role::kAcceptor && differing.empty() && (peer_ <= self_->rank || peer_ >= self_->size)) {
    std::string const text = "rank " + std::to_string(peer_) + " connected to rank " + std::to_string(self_->rank) +
                             " of " + std::to_string(self_->size) + ", which expects only higher ranks of its group";
    refuse(Outcome::kDisagreement, text, text);
    return;
  }
  // An acceptor that finds a difference sends its proof all the same, so that the connector finds the difference too.
  if (role_ == Role::kAcceptor) send_proof();
  if (differing.empty()) {
    outcome_ = Outcome::kDone;
  } else {
    fail(Outcome::kDisagreement, differing);
  }
}

// Both sides hold the same two lists of fields, so both find the same differences.
std::string Handshake::differences() const {
  if (fields_agree_) return {};
  std::string text;
  auto const add = [&](std::string const& name, std::string const* own, std::string const* theirs) {
    text += text.empty() ? "" : "; ";
    text += name + " is " + shown(own) + " at rank " + std::to_string(self_->rank) + " and " + shown(theirs) +
            " at rank " + std::to_string(peer_);
  };
  for (auto const& field : self_->fields) {
    auto const* theirs = find_field(peer_fields_, field.name);
    if (!theirs || *theirs != printable(field.value)) add(field.name, &field.value, theirs);
  }
  for (auto const& field : peer_fields_) {
    if (!find_field(self_->fields, field.name)) add(field.name, nullptr, &field.value);
  }
  return text;
}

// The transcript covers both hellos in the order in which they were sent. A proof is therefore valid for one handshake,
// direction and pair only.
Digest Handshake::proof_of(Role role) {
  if (!transcript_) {
    bool const own_first = role_ == Role::kConnector;
    auto const& first = own_first ? own_hello_ : peer_hello_;
    auto const& second = own_first ? peer_hello_ : own_hello_;
    // Lengths are hashed as well: otherwise bytes could move from one hello to the other without a change of the hash.
    auto const length = [](auto const& hello) {
      return ByteWriter().integer(static_cast<std::uint32_t>(hello.size())).take();
    };
    transcript_ = Sha256().update(length(first)).update(first).update(length(second)).update(second).finish();
  }
  auto const proved =
      ByteWriter().text(role == Role::kConnector ? "headway connector" : "headway acceptor").raw(*transcript_).take();
  return hmac_sha256(std::as_bytes(std::span(self_->secret)), proved);
}

// A refusal before authentication is a stranger's claim. It is still reported, because a rank with a wrong secret
// receives nothing else.
void Handshake::on_refusal(std::span<std::byte const> body) {
  Outcome const outcome = peer_hello_.empty() ? Outcome::kStranger : Outcome::kRefused;
  fail(outcome, decode_text(body));
}

void Handshake::fail(Outcome outcome, std::string error) {
  outcome_ = outcome;
  error_ = std::move(error);
}

void Handshake::refuse(Outcome outcome, std::string const& error, std::string const& told) {
  auto const message = encode_message(BootstrapMessageKind::kRefusal, encode_text(told));
  output_.insert(output_.end(), message.begin(), message.end());
  fail(outcome, error);
}

}  // namespace headway::comm
