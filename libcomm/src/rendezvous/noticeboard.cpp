#include "rendezvous/noticeboard.hpp"

#include "headway/comm/status.hpp"
#include "rendezvous/random.hpp"

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

/// Parses "secret given" or "secret drawn HEX", followed by the contact of rank 0. @throws SystemError.
Announcement parse_announcement(std::string_view text) {
  Announcement announcement;
  if (text.starts_with(kGiven)) {
    text.remove_prefix(kGiven.size());
  } else if (std::size_t const end = text.find('\n'); text.starts_with(kDrawn) && end != std::string_view::npos) {
    announcement.drawn_secret = text.substr(kDrawn.size(), end - kDrawn.size());
    text.remove_prefix(end + 1);
  }
  announcement.contact = decode_contact(text, 0);
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

std::string Announcement::generation() const { return to_hex(contact.instance); }

void Noticeboard::post_announcement(Announcement const& announcement) {
  bool const is_given = announcement.drawn_secret.empty();
  std::string const secret = is_given ? std::string(kGiven) : std::string(kDrawn) + announcement.drawn_secret + "\n";
  store_.set(prefix_ + std::string(kKey), secret + encode_contact(announcement.contact));
}

std::optional<Announcement> Noticeboard::find_announcement(Deadline until) {
  auto const text = find(prefix_ + std::string(kKey), until);
  return text ? std::optional(parse_announcement(*text)) : std::nullopt;
}

void Noticeboard::post_failure(std::string const& generation, RendezvousFailure const& failure) noexcept {
  try {
    auto const now = std::chrono::duration_cast<milliseconds>(system_clock::now().time_since_epoch());
    store_.set(prefix_ + generation + "/failure",
               std::to_string(failure.origin) + " " + std::to_string(now.count()) + " " + failure.text);
  } catch (std::exception const&) {
    // This rank reports the failure itself. The others run into their deadline.
  }
}

void Noticeboard::conclude(std::string const& generation, int rank) {
  ConcludedAttempts::of_process().add(generation + "/" + std::to_string(rank));
}

bool Noticeboard::is_concluded(std::string const& generation, int rank) {
  return ConcludedAttempts::of_process().contains(generation + "/" + std::to_string(rank));
}

std::optional<PostedFailure> Noticeboard::find_failure(std::string const& generation, Deadline until) {
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
std::optional<std::string> Noticeboard::find(std::string const& key, Deadline until) {
  auto const left = std::chrono::ceil<milliseconds>(until - Clock::now());
  try {
    return store_.get(key, std::max(left, milliseconds(1)));
  } catch (SystemError const&) {
    if (Clock::now() + milliseconds(1) >= until) return std::nullopt;
    throw;
  }
}

}  // namespace headway::comm
