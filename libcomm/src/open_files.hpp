#pragma once

#include <cstddef>
#include <string>

namespace headway::comm {

/// Whether `error_number` says that this process or this host may open no more files.
[[nodiscard]] bool is_out_of_files(int error_number);

/// Describes the limit that such an error met; empty for any other error.
[[nodiscard]] std::string open_files_advice(int error_number);

/// Open files that a process with one group of `num_ranks` ranks needs, if all of them are on its host: for each peer a
/// socket, a doorbell, a process and, once there was a reduction, a socket of Gloo; about 64 for Python and torch.
[[nodiscard]] constexpr std::size_t open_files_of_ranks(int num_ranks) {
  return 64 + 4 * static_cast<std::size_t>(num_ranks);
}

/// Checks that this process may open `num_files` more, for a group of `num_ranks` ranks. Costs a look at each open
/// file.
/// @throws SystemError with both numbers and the limit.
void expect_free_files(std::size_t num_files, int num_ranks);

}  // namespace headway::comm
