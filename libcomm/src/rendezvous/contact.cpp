#include "rendezvous/contact.hpp"

#include "headway/comm/status.hpp"
#include "rendezvous/bytes.hpp"
#include "rendezvous/message.hpp"
#include "rendezvous/random.hpp"

#include <charconv>
#include <sstream>

namespace headway::comm {
namespace {

bool parse_hex(std::string_view text, std::span<std::byte> out) {
  if (text.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    unsigned value = 0;
    char const* const begin = text.data() + 2 * i;
    auto const [end, error] = std::from_chars(begin, begin + 2, value, 16);
    if (error != std::errc() || end != begin + 2) return false;
    out[i] = static_cast<std::byte>(value);
  }
  return true;
}

}  // namespace

// Format: one "key value" line each. "instance" (32 hexadecimal digits) is required; "host", "local" and any number of
// "tcp" lines ("10.0.0.1:4711") are optional.
std::string encode_contact(Contact const& contact) {
  std::string text = "instance " + to_hex(contact.instance) + "\n";
  if (!contact.host.empty()) text += "host " + contact.host + "\n";
  if (!contact.local_name.empty()) text += "local " + contact.local_name + "\n";
  for (auto const& address : contact.addresses) text += "tcp " + address.to_string() + "\n";
  return text;
}

Contact decode_contact(std::string_view text, int rank) {
  auto const fail = [&](std::string const& line) {
    return SystemError("the contact of rank " + std::to_string(rank) + " in the store cannot be read ('" + line +
                       "'): does another program use the same keys?");
  };
  Contact contact;
  bool has_instance = false;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::size_t const space = line.find(' ');
    std::string const key = line.substr(0, space);
    std::string const value = space == std::string::npos ? "" : line.substr(space + 1);
    if (key == "instance" && parse_hex(value, contact.instance)) {
      has_instance = true;
    } else if (key == "host") {
      contact.host = value;
    } else if (key == "local") {
      contact.local_name = value;
    } else if (auto const address = SocketAddress::parse(value); key == "tcp" && address) {
      contact.addresses.push_back(*address);
    } else {
      throw fail(line);
    }
  }
  if (!has_instance) throw fail("no instance");
  return contact;
}

std::vector<std::byte> encode_contacts(std::vector<std::string> const& texts) {
  ByteWriter writer;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) writer.text(texts[rank]);
  return writer.take();
}

std::vector<Contact> decode_contacts(std::span<std::byte const> body, int size) {
  ByteReader reader(body);
  std::vector<Contact> contacts(1);
  for (int rank = 1; rank < size && reader.ok(); ++rank) {
    contacts.push_back(decode_contact(reader.text(kMaxMessageBody), rank));
  }
  if (!reader.complete()) throw SystemError("the contacts that rank 0 sent cannot be read");
  return contacts;
}

}  // namespace headway::comm
