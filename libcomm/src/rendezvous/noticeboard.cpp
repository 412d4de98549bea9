#include "rendezvous/noticeboard.hpp"

#include "headway/comm/status.hpp"
#include "rendezvous/random.hpp"

#include <algorithm>
#include <charconv>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kGiven = "given";
constexpr std::string_view kDrawn = "drawn ";

}  // namespace

std::string Noticeboard::agree_on_secret(int rank, std::string const& given, Deadline deadline) {
  std::string const key = prefix_ + "secret";
  if (rank == 0) {
    std::string secret = given.empty() ? to_hex(random_bytes<32>()) : given;
    store_.set(key, given.empty() ? std::string(kDrawn) + secret : std::string(kGiven));
    return secret;
  }
  if (!given.empty()) return given;
  auto const text = find(key, deadline);
  if (!text) throw SystemError("rank 0 did not publish the group's secret in the store in time");
  if (!text->starts_with(kDrawn)) {
    throw SystemError("rank 0 was given a secret and rank " + std::to_string(rank) + " was not");
  }
  return text->substr(kDrawn.size());
}

void Noticeboard::post_contact(int rank, std::string const& text) {
  store_.set(prefix_ + "contact/" + std::to_string(rank), text);
}

std::optional<std::string> Noticeboard::find_contact(int rank, Deadline until) {
  return find(prefix_ + "contact/" + std::to_string(rank), until);
}

void Noticeboard::post_failure(RendezvousFailure const& failure) noexcept {
  try {
    store_.set(prefix_ + "failure", std::to_string(failure.origin) + " " + failure.text);
  } catch (std::exception const&) {
    // The failure itself is reported by this rank; the others have their deadline.
  }
}

std::optional<RendezvousFailure> Noticeboard::find_failure() {
  auto const text = find(prefix_ + "failure", Clock::now() + milliseconds(50));
  if (!text) return std::nullopt;
  RendezvousFailure failure;
  std::size_t const space = std::min(text->find(' '), text->size());
  std::from_chars(text->data(), text->data() + space, failure.origin);
  failure.text = text->substr(std::min(space + 1, text->size()));
  return failure;
}

// A store says by an exception that a key is not there in time; any other error comes before the time is up.
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
