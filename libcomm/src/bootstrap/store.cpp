// SPDX-License-Identifier: Apache-2.0

// Stores of small values: in memory for threads of one process, in a directory for processes that share a file system.
//
// Invariant: a reader of a FileStore sees a whole value or none. A value is written to a temporary file, then
// renamed; rename is atomic within a directory, also on NFS. A second set() of a key replaces the value in the same
// way.

#include "headway/comm/store.hpp"

#include "bootstrap/sha256.hpp"
#include "headway/base/file_descriptor.hpp"
#include "headway/comm/status.hpp"
#include "system/random.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <thread>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

SystemError key_missing(std::string const& key, std::string const& where, milliseconds timeout) {
  return SystemError("key '" + key + "' did not appear in " + where + " within " + std::to_string(timeout.count()) +
                     " ms");
}

// One file per key in a flat directory. Bytes that are unsafe in a file name become %xx. Names that would be too long
// are hashed.
std::string file_name(std::string const& key) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  constexpr std::size_t kMaxNameBytes = 200;
  std::string name = "key-";
  for (char const c : key) {
    auto const byte = static_cast<unsigned char>(c);
    bool const safe =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_' || c == '.';
    if (safe) {
      name += c;
    } else {
      name += {'%', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
    }
  }
  return name.size() <= kMaxNameBytes ? name : "hash-" + to_hex(sha256(std::as_bytes(std::span(key))));
}

// Opens a file. On a network file system a signal may interrupt the call.
base::FileDescriptor open_file(std::string const& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  } while (fd < 0 && errno == EINTR);
  return base::FileDescriptor(fd);
}

void write_all(int fd, std::string_view value, std::string const& path) {
  while (!value.empty()) {
    ssize_t const written = ::write(fd, value.data(), value.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw SystemError("write", errno, path);
    value.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Values appear by rename, so an existing file is complete. @returns whether the file exists.
bool read_file(std::string const& path, std::string& value) {
  base::FileDescriptor const file = open_file(path, O_RDONLY);
  if (!file.valid()) {
    // ESTALE: another rank has replaced the file between this open and the server's answer (NFS).
    if (errno == ENOENT || errno == ESTALE) return false;
    throw SystemError("open", errno, path);
  }
  value.clear();
  char buffer[4096];
  for (;;) {
    ssize_t const count = ::read(file.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == ESTALE) return false;
    if (count < 0) throw SystemError("read", errno, path);
    if (count == 0) return true;
    value.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

void MemoryStore::set(std::string const& key, std::string_view value) {
  {
    std::lock_guard const lock(mutex_);
    values_.insert_or_assign(key, std::string(value));
  }
  changed_.notify_all();
}

std::string MemoryStore::get(std::string const& key, milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
    throw key_missing(key, "the store", timeout);
  }
  return values_.at(key);
}

FileStore::FileStore(std::filesystem::path directory) : directory_(std::move(directory)) {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) throw SystemError("creating a directory", error.value(), directory_.string());
}

// Writes a temporary file and renames it: readers see the old value or the new one, never a part.
void FileStore::set(std::string const& key, std::string_view value) {
  // A random name: ranks may set one key at the same time, and the last rename wins.
  std::string const temporary = (directory_ / ("new-" + to_hex(random_bytes<8>()))).string();
  std::string const final_path = (directory_ / file_name(key)).string();
  base::FileDescriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.valid()) throw SystemError("open", errno, temporary);
  try {
    write_all(file.get(), value, temporary);
    // On a network file system close() makes the bytes visible, and may report a full disk. Linux has closed the file
    // even if a signal interrupted the call.
    if (::close(file.release()) != 0 && errno != EINTR) throw SystemError("close", errno, temporary);
    if (::rename(temporary.c_str(), final_path.c_str()) != 0) throw SystemError("rename", errno, final_path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

std::string FileStore::get(std::string const& key, milliseconds timeout) {
  constexpr milliseconds kLongestPause(50);
  auto const deadline = steady_clock::now() + timeout;
  std::string const path = (directory_ / file_name(key)).string();
  std::string value;
  for (milliseconds pause(1);; pause = std::min(2 * pause, kLongestPause)) {
    if (read_file(path, value)) return value;
    auto const left = deadline - steady_clock::now();
    if (left <= steady_clock::duration::zero()) throw key_missing(key, directory_.string(), timeout);
    std::this_thread::sleep_for(std::min<steady_clock::duration>(pause, left));
  }
}

}  // namespace headway::comm
