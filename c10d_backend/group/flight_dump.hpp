// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <headway/comm/flight_record.hpp>
#include <headway/comm/status.hpp>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace headway::c10d_backend {

/// Formats a group's flight records (its last operations on this rank) as JSON, and writes them to a file when the
/// group fails.
class FlightDump final {
 public:
  /// Fields of the file that tell which group and rank it is from.
  struct Labels {
    std::string group_name;
    int rank;                       ///< Rank in the group.
    std::vector<int> global_ranks;  ///< (size) Global rank of each rank of the group.
    std::size_t capacity;           ///< Most records that are kept: GroupOptions::flight_records.
  };
  /// `folder`: target folder; empty disables writing.
  FlightDump(Labels labels, std::string folder);

  [[nodiscard]] std::string const& group_name() const { return labels_.group_name; }
  [[nodiscard]] bool writes() const { return !folder_.empty(); }
  /// JSON in the format of headway.comm.flight_recorder.FlightDump.
  [[nodiscard]] std::string text(comm::Status const& failure, std::vector<comm::FlightRecord> const& records) const;
  /// Writes the file once. A concurrent caller waits until it is written. Reports the result on stderr.
  /// @returns the path of the file; empty if it could not be written.
  std::string const& write_once(comm::Status const& failure, std::vector<comm::FlightRecord> const& records) noexcept;

 private:
  /// Creates a file that only this user can read. @throws std::exception if the folder does not allow that safely.
  void write(std::string const& name, std::string const& text) const;

  Labels labels_;
  std::string folder_;
  std::once_flag is_written_;
  std::string path_;
};

}  // namespace headway::c10d_backend
