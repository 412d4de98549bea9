// SPDX-License-Identifier: Apache-2.0

// How ranks form a new group after one of them was lost.
//
// Idea: groups are numbered; a number is a *generation*. A rank announces the generation that it wants to join by an
// empty file, GENERATION.RANK. It wants one more than it had: after it has lost its group, and also after it was
// started again, since its predecessor has left files. If another rank has announced a later one, it wants that.
//
// Example: ranks 0 to 2 are in generation 0. Rank 1 is killed. Ranks 0 and 2 lose their group and announce 1. The new
//   rank 1 finds 0.1, its predecessor's file, and announces 1 as well. All three connect as generation 1.
//   If rank 2 is killed while they connect, the next rank 2 finds 1.2 and announces 2. The others see 2, give up 1, and
//   announce 2, too.
// Invariants: generations that a rank announces grow. Each has a store of its own, so messages of two never mix.
//   When no rank is lost any more, all ranks come to the largest generation that was announced.

#include "headway/serving/generations.hpp"

#include "headway/base/log.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

namespace headway::serving {

namespace {

/// Ends an attempt to connect.
struct Superseded {};
struct Stopped {};

struct Announcement {
  std::int64_t generation = -1;
  int rank = -1;
};

/// Reads the name of a file. @returns generation -1 if it is another file
Announcement parse(std::string const& name) {
  Announcement parsed;
  auto const* const end = name.data() + name.size();
  auto const first = std::from_chars(name.data(), end, parsed.generation);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return {};
  auto const second = std::from_chars(first.ptr + 1, end, parsed.rank);
  return second.ec == std::errc() && second.ptr == end ? parsed : Announcement{};
}

}  // namespace

Generations::Generations(std::filesystem::path folder, int rank, int size, comm::GroupOptions options)
    : folder_(std::move(folder)), rank_(rank), size_(size), options_(std::move(options)) {}

Generations::Newest Generations::newest() const {
  Newest newest;
  for (auto const& entry : std::filesystem::directory_iterator(folder_)) {
    auto const found = parse(entry.path().filename().string());
    auto& kind = found.rank == rank_ ? newest.own : newest.others;
    kind = std::max(kind, found.generation);
  }
  return newest;
}

void Generations::announce(std::int64_t generation) const {
  std::ofstream const file(folder_ / (std::to_string(generation) + "." + std::to_string(rank_)));
  if (!file) throw base::SystemError("creating a file", errno, "in " + folder_.string());
}

std::shared_ptr<comm::Group> Generations::connect(std::function<bool()> const& may_go_on) {
  try {
    std::filesystem::create_directories(folder_);
    generation_ = std::max(generation_, newest().own) + 1;
    while (true) {
      generation_ = std::max(generation_, newest().others);
      announce(generation_);
      comm::FileStore store(folder_ / ("store." + std::to_string(generation_)));
      auto options = options_;
      options.name += "." + std::to_string(generation_);
      options.while_connecting = [&] {
        if (!may_go_on()) throw Stopped();
        if (newest().others > generation_) throw Superseded();
      };
      try {
        return comm::Group::connect(rank_, size_, store, std::move(options));
      } catch (Superseded const&) {
      } catch (Stopped const&) {
        return nullptr;
      } catch (base::SystemError const& error) {
        if (!may_go_on()) return nullptr;
        base::log(base::LogLevel::kWarning, "serving", rank_, std::string("connecting again: ") + error.what());
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ++generation_;
      }
    }
  } catch (std::filesystem::filesystem_error const& error) {
    throw base::SystemError(error.what());
  }
}

}  // namespace headway::serving
