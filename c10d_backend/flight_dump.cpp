#include "flight_dump.hpp"

#include "torch_headers.hpp"

#include <c10/core/ScalarType.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
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

std::string list_of(std::vector<int> const& numbers) {
  std::string result = "[";
  for (int const number : numbers) result += (result.size() > 1 ? ", " : "") + std::to_string(number);
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

std::string rank_or_null(int number) { return number < 0 ? "null" : std::to_string(number); }

std::string row_of(comm::FlightRecord const& record) {
  auto const type = c10::getDtypeNames(static_cast<c10::ScalarType>(record.data_type)).first;
  return "{\"operation\": " + json_string(record.verb) + ", \"number\": " + std::to_string(record.number) +
         ", \"channel\": " + rank_or_null(record.channel) + ", \"device\": " + rank_or_null(record.device) +
         ", \"peer\": " + rank_or_null(record.peer) + ", \"data_type\": " + json_string(type) +
         ", \"input_bytes\": " + std::to_string(record.input_bytes) +
         ", \"output_bytes\": " + std::to_string(record.output_bytes) +
         ", \"state\": " + json_string(name_of(record.state)) + ", \"started_ns\": " + time_or_null(record.started) +
         ", \"posted_ns\": " + time_or_null(record.posted) + ", \"completed_ns\": " + time_or_null(record.completed) +
         ", \"waiting_for\": " + list_of(record.waiting_for) + "}";
}

/// c10d's names of groups may hold anything.
std::string file_name_of(std::string name) {
  for (char& each : name) {
    if (std::isalnum(static_cast<unsigned char>(each)) == 0) each = '_';
  }
  return name;
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
      std::string const path =
          folder_ + "/group_" + file_name_of(labels_.group_name) + ".rank_" + std::to_string(global_rank) + ".json";
      write(path, text(failure, records));
      std::fprintf(stderr, "headway: rank %d: group '%s' failed; what it did last is in %s\n", global_rank,
                   labels_.group_name.c_str(), path.c_str());
      path_ = path;
    } catch (std::exception const& error) {
      std::fprintf(stderr, "headway: the flight records of a group cannot be written: %s\n", error.what());
    }
  });
  return path_;
}

void FlightDump::write(std::string const& path, std::string const& text) const {
  // Under another name first: whoever looks while the job ends finds a whole file or none.
  std::string const part = path + ".part";
  std::ofstream file;
  file.exceptions(std::ios::failbit | std::ios::badbit);
  try {
    file.open(part);
    file << text;
    file.close();
  } catch (std::ios::failure const&) {
    throw std::system_error(errno, std::generic_category(), part);
  }
  std::filesystem::rename(part, path);
}

}  // namespace headway::c10d_backend
