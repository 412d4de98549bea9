#pragma once

#include <headway/comm/flight_record.hpp>
#include <headway/comm/status.hpp>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace headway::c10d_backend {

/// Tells in JSON what a group did last, and writes that to a file when the group fails.
class FlightDump final {
 public:
  struct Labels {
    std::string group_name;
    int rank;                       ///< In the group.
    std::vector<int> global_ranks;  ///< (size) Ranks of the default group, by rank in this one.
    std::size_t capacity;           ///< GroupOptions::flight_records.
  };
  /// `folder`: empty where nothing is written.
  FlightDump(Labels labels, std::string folder);

  [[nodiscard]] std::string const& group_name() const { return labels_.group_name; }
  [[nodiscard]] bool writes() const { return !folder_.empty(); }
  /// The format is that of headway.flight_recorder.FlightDump.
  [[nodiscard]] std::string text(comm::Status const& failure, std::vector<comm::FlightRecord> const& records) const;
  /// Writes the file, unless it was; a caller that comes while another one writes waits for that. Says on stderr what
  /// came of it. @returns the file's path; empty if it could not be written.
  std::string const& write_once(comm::Status const& failure, std::vector<comm::FlightRecord> const& records) noexcept;

 private:
  /// Makes a file that only this user can read. @throws std::exception if that is not safe in the folder.
  void write(std::string const& name, std::string const& text) const;

  Labels labels_;
  std::string folder_;
  std::once_flag is_written_;
  std::string path_;
};

}  // namespace headway::c10d_backend
