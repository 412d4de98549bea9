// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace headway::comm {

/// Key-value store through which ranks find each other before they are connected. Values are small and visible to all
/// ranks.
class Store {
 public:
  virtual ~Store() = default;
  /// Stores `value` under `key`. Ranks may wait for it in get().
  virtual void set(std::string const& key, std::string_view value) = 0;
  /// Waits until `key` exists. @throws SystemError that names the key when `timeout` passes.
  virtual std::string get(std::string const& key, std::chrono::milliseconds timeout) = 0;
};

/// Store for ranks that are threads of one process. Thread-safe.
class MemoryStore final : public Store {
 public:
  void set(std::string const& key, std::string_view value) override;
  std::string get(std::string const& key, std::chrono::milliseconds timeout) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// Store in a directory that all ranks share. It must be empty or absent when a job starts.
/// A value is visible as a whole or not at all, also on network file systems: it is written under another name, then
/// renamed. get() polls, since such file systems announce no changes: after 1 ms at first, then every 50 ms.
class FileStore final : public Store {
 public:
  explicit FileStore(std::filesystem::path directory);
  void set(std::string const& key, std::string_view value) override;
  std::string get(std::string const& key, std::chrono::milliseconds timeout) override;

 private:
  std::filesystem::path directory_;
};

}  // namespace headway::comm
