// SPDX-License-Identifier: Apache-2.0

// The flight records of a failed group as a JSON file, for `headway flight-records` and for people.
//
// A record describes one operation of the group on this rank; the flight recorder keeps the last ones. Each record
// takes one line, so that the file can be searched with grep. Times are nanoseconds since 1970; null means that it did
// not happen. An operation is queued until all messages of this rank are posted, for instance because max_lag holds
// them back. `waiting_for` lists ranks of the group; `global_ranks` translates them.
//
// Security: the folder may be shared (/tmp), so another user could plant a link under the file's name and let this
// process overwrite a file of its own. The folder is therefore opened once and checked, everything else is relative
// to that descriptor, links are not followed, and the file is new and readable for this user only.

#include "group/flight_dump.hpp"

#include "tensors/work_tensors.hpp"
#include "torch_headers.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

namespace headway::c10d_backend {

namespace {

std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (char const each : text) {
    if (static_cast<unsigned char>(each) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(each));
      result += escape;
      continue;
    }
    if (each == '"' || each == '\\') result += '\\';
    result += each;
  }
  return result + '"';
}

std::string list_of(std::vector<int> const& ranks) {
  std::string result = "[";
  for (int const rank : ranks) result += (result.size() > 1 ? ", " : "") + std::to_string(rank);
  return result + "]";
}

char const* name_of(comm::FlightState state) {
  switch (state) {
    case comm::FlightState::kQueued:
      return "queued";
    case comm::FlightState::kPosted:
      return "posted";
    case comm::FlightState::kCompleted:
      return "completed";
    case comm::FlightState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string time_or_null(comm::FlightRecord::Time time) {
  if (time == comm::FlightRecord::Time()) return "null";
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

std::string rank_or_null(int rank) { return rank < 0 ? "null" : std::to_string(rank); }

std::string row_of(comm::FlightRecord const& record) {
  auto const type = data_type_name(record.data_type);
  return "{\"operation\": " + json_string(record.verb) + ", \"seq\": " + std::to_string(record.seq) +
         ", \"channel\": " + rank_or_null(record.channel) + ", \"device\": " + rank_or_null(record.device) +
         ", \"peer\": " + rank_or_null(record.peer) + ", \"data_type\": " + json_string(type) +
         ", \"input_bytes\": " + std::to_string(record.input_bytes) +
         ", \"output_bytes\": " + std::to_string(record.output_bytes) +
         ", \"state\": " + json_string(name_of(record.state)) + ", \"started_ns\": " + time_or_null(record.started) +
         ", \"posted_ns\": " + time_or_null(record.posted) + ", \"completed_ns\": " + time_or_null(record.completed) +
         ", \"waiting_for\": " + list_of(record.waiting_for) + "}";
}

/// Makes a file name of a group name, which may contain any character.
std::string file_name_of(std::string name) {
  for (char& each : name) {
    if (std::isalnum(static_cast<unsigned char>(each)) == 0) each = '_';
  }
  return name;
}

/// Returns `result` of a system call. @throws std::system_error that names `path` if it is negative.
int expect_success(int result, std::string const& path) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), path);
  return result;
}

class Descriptor final {
 public:
  Descriptor(int value, std::string const& path) : value_(expect_success(value, path)) {}
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  ~Descriptor() { ::close(value_); }
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

/// Throws if another user controls the names of files in `folder`. Root may own it, as it owns /tmp.
void expect_safe(Descriptor const& folder, std::string const& path) {
  struct stat status {};
  expect_success(::fstat(folder.get(), &status), path);
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    throw std::runtime_error(path + " belongs to another user (" + std::to_string(status.st_uid) + ")");
  }
  if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
    throw std::runtime_error(path + " can be written to by everybody, and is not sticky");
  }
}

void write_all(Descriptor const& file, std::string_view text, std::string const& path) {
  while (!text.empty()) {
    auto const written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    expect_success(written < 0 ? -1 : 0, path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

FlightDump::FlightDump(Labels labels, std::string folder) : labels_(std::move(labels)), folder_(std::move(folder)) {}

std::string FlightDump::text(comm::Status const& failure, std::vector<comm::FlightRecord> const& records) const {
  std::string result = "{\"group\": " + json_string(labels_.group_name) +
                       ", \"rank\": " + std::to_string(labels_.rank) +
                       ", \"global_ranks\": " + list_of(labels_.global_ranks) +
                       ", \"failure\": " + (failure.ok() ? "null" : json_string(failure.message())) +
                       ", \"capacity\": " + std::to_string(labels_.capacity) + ", \"records\": [";
  char const* separator = "\n";
  for (auto const& record : records) result += std::exchange(separator, ",\n") + row_of(record);
  return result + "\n]}\n";
}

std::string const& FlightDump::write_once(comm::Status const& failure,
                                          std::vector<comm::FlightRecord> const& records) noexcept {
  std::call_once(is_written_, [&] {
    try {
      int const global_rank = labels_.global_ranks.at(static_cast<std::size_t>(labels_.rank));
      std::string const name =
          "group_" + file_name_of(labels_.group_name) + ".rank_" + std::to_string(global_rank) + ".json";
      std::string const path = folder_ + "/" + name;
      write(name, text(failure, records));
      std::fprintf(stderr, "headway: rank %d: group '%s' failed; what it did last is in %s\n", global_rank,
                   labels_.group_name.c_str(), path.c_str());
      path_ = path;
    } catch (std::exception const& error) {
      std::fprintf(stderr, "headway: the flight records of a group cannot be written: %s\n", error.what());
    }
  });
  return path_;
}

void FlightDump::write(std::string const& name, std::string const& text) const {
  // The folder may have been replaced since the group was made. It is opened once, and checked through its descriptor.
  Descriptor const folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), folder_);
  expect_safe(folder, folder_);
  // Written under another name first: a reader sees a whole file or none, even if the job ends meanwhile.
  std::string const part = name + ".part";
  ::unlinkat(folder.get(), part.c_str(), 0);  // Left over, or planted by another user. Links are not followed.
  Descriptor const file(
      ::openat(folder.get(), part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR),
      part);
  try {
    write_all(file, text, part);
    expect_success(::renameat(folder.get(), part.c_str(), folder.get(), name.c_str()), name);
  } catch (std::exception const&) {
    ::unlinkat(folder.get(), part.c_str(), 0);
    throw;
  }
}

}  // namespace headway::c10d_backend
