// SPDX-License-Identifier: Apache-2.0

// Text form of a rank's address: published in the store, or sent to rank 0, which passes all of them on.
//
// Format: one "key value" line each. "instance" (32 hexadecimal digits, random for each rank and attempt) is required.
// Optional are "host" (boot id and network namespace), "local" (an abstract Unix socket), and any number of "tcp"
// lines.
// Example: "instance 0f...e2\nhost 3a91-.../4026531840\nlocal headway-0f...e2\ntcp 10.0.0.1:4711\n".

#include "bootstrap/rank_address.hpp"

#include "bootstrap/bytes.hpp"
#include "bootstrap/message.hpp"
#include "headway/comm/status.hpp"
#include "system/random.hpp"

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

std::string encode_rank_address(RankAddress const& rank_address) {
  std::string text = "instance " + to_hex(rank_address.instance) + "\n";
  if (!rank_address.host.empty()) text += "host " + rank_address.host + "\n";
  if (!rank_address.local_name.empty()) text += "local " + rank_address.local_name + "\n";
  for (auto const& address : rank_address.addresses) text += "tcp " + address.to_string() + "\n";
  return text;
}

RankAddress decode_rank_address(std::string_view text, int rank, std::string_view origin) {
  auto const fail = [&](std::string const& line) {
    return SystemError("the address of rank " + std::to_string(rank) + " " + std::string(origin) +
                       " cannot be read ('" + line + "'): does another program use the same store or port?");
  };
  RankAddress rank_address;
  bool has_instance = false;
  // An unknown key is an error: all ranks of a job run the same version.
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::size_t const space = line.find(' ');
    std::string const key = line.substr(0, space);
    std::string const value = space == std::string::npos ? "" : line.substr(space + 1);
    if (key == "instance" && parse_hex(value, rank_address.instance)) {
      has_instance = true;
    } else if (key == "host") {
      rank_address.host = value;
    } else if (key == "local") {
      rank_address.local_name = value;
    } else if (auto const address = SocketAddress::parse(value); key == "tcp" && address) {
      rank_address.addresses.push_back(*address);
    } else {
      throw fail(line);
    }
  }
  if (!has_instance) throw fail("no instance");
  return rank_address;
}

std::vector<std::byte> encode_rank_addresses(std::vector<std::string> const& texts) {
  ByteWriter writer;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) writer.text(texts[rank]);
  return writer.take();
}

std::vector<RankAddress> decode_rank_addresses(std::span<std::byte const> body, int size) {
  ByteReader reader(body);
  // Rank 0 is missing in the message, since every receiver is connected with it. Its entry stays empty.
  std::vector<RankAddress> rank_addresses(1);
  for (int rank = 1; rank < size; ++rank) {
    auto const text = reader.text(kMaxMessageBody);
    if (!reader.ok()) break;
    rank_addresses.push_back(decode_rank_address(text, rank, "in the message of rank 0"));
  }
  if (!reader.complete()) {
    throw SystemError("the addresses of " + std::to_string(size) +
                      " ranks that rank 0 sent cannot be read: the message"
                      " is too short or too long");
  }
  return rank_addresses;
}

}  // namespace headway::comm
