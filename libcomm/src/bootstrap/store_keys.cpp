// SPDX-License-Identifier: Apache-2.0

// Keys and values of a group in the store; store_keys.hpp explains why only one key is trusted without a generation.
//
// Example: "headway/world/announcement" holds "secret drawn 5e...\ninstance 0f...e2\n...", and
// "headway/world/0f...e2/failure" holds "2 1700000000000 no free descriptors": origin, time in ms, reason. The secret
// is "drawn" if rank 0 chose a random one, and "given" if the group's options contain it.

#include "bootstrap/store_keys.hpp"

#include "headway/comm/status.hpp"
#include "system/random.hpp"

#include <algorithm>
#include <charconv>
#include <deque>
#include <mutex>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::string_view kGiven = "secret given\n";
constexpr std::string_view kDrawn = "secret drawn ";
constexpr std::string_view kKey = "announcement";

/// Parses "secret given" or "secret drawn HEX", followed by the address of rank 0. @throws SystemError.
Announcement parse_announcement(std::string_view text) {
  Announcement announcement;
  if (text.starts_with(kGiven)) {
    text.remove_prefix(kGiven.size());
  } else if (std::size_t const end = text.find('\n'); text.starts_with(kDrawn) && end != std::string_view::npos) {
    announcement.drawn_secret = text.substr(kDrawn.size(), end - kDrawn.size());
    text.remove_prefix(end + 1);
  }
  announcement.rank_address = decode_rank_address(text, 0);
  return announcement;
}

/// The most recent attempts that ranks of this process gave up.
class ConcludedAttempts {
 public:
  static ConcludedAttempts& of_process() {
    static ConcludedAttempts instance;
    return instance;
  }
  void add(std::string attempt) {
    constexpr std::size_t kMaxAttempts = 1024;
    std::lock_guard const lock(mutex_);
    attempts_.push_back(std::move(attempt));
    if (attempts_.size() > kMaxAttempts) attempts_.pop_front();
  }
  [[nodiscard]] bool contains(std::string const& attempt) {
    std::lock_guard const lock(mutex_);
    return std::ranges::find(attempts_, attempt) != attempts_.end();
  }

 private:
  std::mutex mutex_;
  std::deque<std::string> attempts_;
};

template <typename Integer>
Integer take_integer(std::string_view& text) {
  Integer value{};
  std::size_t const space = std::min(text.find(' '), text.size());
  std::from_chars(text.data(), text.data() + space, value);
  text.remove_prefix(std::min(space + 1, text.size()));
  return value;
}

}  // namespace

std::string Announcement::generation() const { return to_hex(rank_address.instance); }

void StoreKeys::post_announcement(Announcement const& announcement) {
  bool const is_given = announcement.drawn_secret.empty();
  std::string const secret = is_given ? std::string(kGiven) : std::string(kDrawn) + announcement.drawn_secret + "\n";
  store_.set(prefix_ + std::string(kKey), secret + encode_rank_address(announcement.rank_address));
}

std::optional<Announcement> StoreKeys::find_announcement(Deadline until) {
  auto const text = find(prefix_ + std::string(kKey), until);
  return text ? std::optional(parse_announcement(*text)) : std::nullopt;
}

void StoreKeys::post_failure(std::string const& generation, BootstrapFailure const& failure) noexcept {
  try {
    auto const now = std::chrono::duration_cast<milliseconds>(system_clock::now().time_since_epoch());
    store_.set(prefix_ + generation + "/failure",
               std::to_string(failure.origin) + " " + std::to_string(now.count()) + " " + failure.text);
  } catch (std::exception const&) {
    // This rank reports the failure itself. The others run into their deadline.
  }
}

void StoreKeys::conclude(std::string const& generation, int rank) {
  ConcludedAttempts::of_process().add(generation + "/" + std::to_string(rank));
}

bool StoreKeys::is_concluded(std::string const& generation, int rank) {
  return ConcludedAttempts::of_process().contains(generation + "/" + std::to_string(rank));
}

std::optional<PostedFailure> StoreKeys::find_failure(std::string const& generation, Deadline until) {
  auto const value = find(prefix_ + generation + "/failure", until);
  if (!value) return std::nullopt;
  std::string_view text = *value;
  PostedFailure posted;
  posted.failure.origin = take_integer<int>(text);
  posted.posted_at = system_clock::time_point(milliseconds(take_integer<std::int64_t>(text)));
  posted.failure.text = text;
  return posted;
}

// A store reports by an exception that a key did not appear in time. An exception before `until` is another error.
std::optional<std::string> StoreKeys::find(std::string const& key, Deadline until) {
  auto const left = std::chrono::ceil<milliseconds>(until - Clock::now());
  try {
    return store_.get(key, std::max(left, milliseconds(1)));
  } catch (SystemError const&) {
    if (Clock::now() + milliseconds(1) >= until) return std::nullopt;
    throw;
  }
}

}  // namespace headway::comm
