// SPDX-License-Identifier: Apache-2.0
#pragma once

// A client of Redis for rows of one size, by its protocol RESP 2 over a Unix socket
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).
//
// Idea: a lookup is one MGET of all keys, and an update one MSET. All rows are there and as large, so an answer has a
// size that is known, and needs no parser.
//
// Example: MGET of id 7 with rows of 8 bytes sends "*2\r\n$4\r\nMGET\r\n$8\r\n........\r\n", where the key is the id's
// 8 bytes. The answer has "*1\r\n$8\r\n", the row and "\r\n".

#include "sockets.hpp"

#include <headway/base/file_descriptor.hpp>

#include <sys/un.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace headway::benchmarks {

class RedisClient {
 public:
  /// @param path of the server's Unix socket
  RedisClient(std::string const& path, std::size_t row_bytes)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), row_bytes_(row_bytes) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) throw std::runtime_error("the path of Redis' socket is too long");
    std::memcpy(address.sun_path, path.data(), path.size());
    check(::connect(socket_.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address), "connect to Redis");
  }

  void start_get(std::span<std::uint64_t const> ids) {
    begin("MGET", ids.size());
    for (auto const& id : ids) add(std::as_bytes(std::span(&id, 1)));
    send_all(socket_.get(), out_);
  }
  /// Takes the answer to the oldest start_get().
  /// @param rows (ids.size() * row_bytes) Gets the rows.
  void finish_get(std::size_t num_ids, std::span<std::byte> rows) {
    auto const head = "*" + std::to_string(num_ids) + "\r\n", prefix = size_line(row_bytes_);
    auto const stride = prefix.size() + row_bytes_ + 2;
    in_.resize(head.size() + num_ids * stride);
    if (!receive_all(socket_.get(), in_)) throw std::runtime_error("Redis has closed the connection");
    expect(in_, head);
    for (std::size_t i = 0; i < num_ids; ++i) {
      auto const answer = std::span<std::byte const>(in_).subspan(head.size() + i * stride, stride);
      expect(answer, prefix);  // "$-1" would be a key that is not there.
      std::memcpy(rows.data() + i * row_bytes_, answer.data() + prefix.size(), row_bytes_);
    }
  }
  /// Writes rows and waits for the answer.
  void set(std::span<std::uint64_t const> ids, std::span<std::byte const> rows) {
    begin("MSET", 2 * ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      add(std::as_bytes(std::span(&ids[i], 1)));
      add(rows.subspan(i * row_bytes_, row_bytes_));
    }
    send_all(socket_.get(), out_);
    in_.resize(5);
    if (!receive_all(socket_.get(), in_)) throw std::runtime_error("Redis has closed the connection");
    expect(in_, "+OK\r\n");
  }

 private:
  static std::string size_line(std::size_t size) { return "$" + std::to_string(size) + "\r\n"; }
  static void expect(std::span<std::byte const> bytes, std::string_view wanted) {
    if (std::memcmp(bytes.data(), wanted.data(), wanted.size()) == 0) return;
    throw std::runtime_error("Redis answered " +
                             std::string(reinterpret_cast<char const*>(bytes.data()), wanted.size()));
  }
  void append(std::string_view text) {
    auto const bytes = std::as_bytes(std::span(text));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void begin(std::string_view command, std::size_t num_arguments) {
    out_.clear();
    append("*" + std::to_string(num_arguments + 1) + "\r\n" + size_line(command.size()));
    append(command);
    append("\r\n");
  }
  void add(std::span<std::byte const> argument) {
    append(size_line(argument.size()));
    out_.insert(out_.end(), argument.begin(), argument.end());
    append("\r\n");
  }

  base::FileDescriptor socket_;
  std::size_t row_bytes_;
  std::vector<std::byte> out_{}, in_{};
};

}  // namespace headway::benchmarks
