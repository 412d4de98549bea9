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

/// Where ranks find each other before they are connected: small values by key, seen by all ranks.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string const& key, std::string_view value) = 0;
  /// Waits until `key` is there. @throws SystemError naming the key when `timeout` passes.
  virtual std::string get(std::string const& key, std::chrono::milliseconds timeout) = 0;
};

/// Ranks that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(std::string const& key, std::string_view value) override;
  std::string get(std::string const& key, std::chrono::milliseconds timeout) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// Ranks that share a directory, which must be empty or not there at the first use of a job.
class FileStore final : public Store {
 public:
  explicit FileStore(std::filesystem::path directory);
  void set(std::string const& key, std::string_view value) override;
  std::string get(std::string const& key, std::chrono::milliseconds timeout) override;

 private:
  std::filesystem::path directory_;
};

}  // namespace headway::comm
