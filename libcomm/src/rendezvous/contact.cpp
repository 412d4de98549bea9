#include "rendezvous/contact.hpp"

#include "headway/comm/status.hpp"
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

}  // namespace headway::comm
