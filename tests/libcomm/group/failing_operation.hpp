// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace headway::comm {

/// First failure that a caller of `group` sees. It comes from the start of the operation if a peer's error came sooner,
/// or from the operation. If this rank's part completed, it comes from the group later.
/// @throws std::runtime_error if there is none within 20 s.
template <typename Start>
Status first_failure(Group& group, Start const& start) {
  try {
    if (Status status = group.wait(*start(group)); !status.ok()) return status;
  } catch (OperationError const& error) {
    return error.status();
  }
  for (Deadline const deadline = Clock::now() + std::chrono::seconds(20); Clock::now() < deadline;) {
    if (Status status = group.monitor().health(); !status.ok()) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw std::runtime_error("the operation was done and the group shows no failure");
}

/// Whether `text` contains `part` as a whole word.
inline bool names(std::string_view text, std::string_view part) {
  auto const is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    bool const starts = at == 0 || !is_word(text[at - 1]);
    bool const ends = at + part.size() == text.size() || !is_word(text[at + part.size()]);
    if (starts && ends) return true;
  }
  return false;
}

}  // namespace headway::comm
