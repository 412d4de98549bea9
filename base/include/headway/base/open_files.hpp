// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace headway::base {

/// Does `error_number` say that this process or this host may open no more files?
[[nodiscard]] bool is_out_of_files(int error_number);

/// Advice about the limit behind such an error; empty for any other error.
[[nodiscard]] std::string open_files_advice(int error_number);

/// Open files that a process needs for one group of `num_ranks` ranks, all on its host. Per peer: a socket, an eventfd
/// (doorbell), a pidfd and, after a reduction, a socket of Gloo, which does the reductions. Python and torch need
/// about 64.
[[nodiscard]] constexpr std::size_t open_files_of_ranks(int num_ranks) {
  return 64 + 4 * static_cast<std::size_t>(num_ranks);
}

/// Checks that this process may open `num_files` more files, for a group of `num_ranks` ranks. The error names
/// `num_ranks`; the check does not use it. Cost: it lists the open files of the process.
/// @throws SystemError with both numbers and the limit.
void expect_free_files(std::size_t num_files, int num_ranks);

}  // namespace headway::base
