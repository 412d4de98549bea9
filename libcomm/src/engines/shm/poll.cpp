// What is not on the path of messages: sleeping, notices, and noticing that a peer is gone.

#include "engines/shm/endpoint.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace headway::comm {

namespace {

constexpr std::size_t kMaxNoticeBytes = 4096;

bool is_readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

void ShmEndpoint::sleep(Deadline deadline) {
  std::array<epoll_event, 2> events;
  int const count = epoll_wait(activity_.get(), events.data(), events.size(), milliseconds_until(deadline));
  for (int i = 0; i < count; ++i) {
    bool const is_lifeline = events[static_cast<std::size_t>(i)].data.fd == lifelines_.get();
    is_lifeline ? lifeline_is_ready_.store(true) : bell_.drain();
  }
}

void ShmEndpoint::send_notice(int peer, std::string_view text) noexcept {
  auto const& link = links_[index(peer)];
  if (!link.socket.valid() || link.lost) return;
  auto const length = static_cast<std::uint32_t>(std::min(text.size(), kMaxNoticeBytes));
  std::array<char, sizeof length + kMaxNoticeBytes> frame;
  std::memcpy(frame.data(), &length, sizeof length);
  std::memcpy(frame.data() + sizeof length, text.data(), length);
  // Best effort: the socket carries nothing else, so its buffer has room for many notices.
  [[maybe_unused]] auto const sent =
      send(link.socket.get(), frame.data(), sizeof length + length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool ShmEndpoint::check_lifelines(ArrivalSink& sink) {
  lifeline_is_ready_.store(false);
  if (!is_readable(lifelines_.get())) return false;
  // All notices before any loss: a peer that left because another was lost says so.
  std::vector<Source*> leaving;
  for (auto& source : sources_) {
    auto& link = links_[index(source.rank)];
    if (link.lost) continue;
    link.has_ended = link.pidfd.valid() && is_readable(link.pidfd.get());
    bool const is_open = read_notices(source.rank, sink);
    if (!is_open || link.has_ended) leaving.push_back(&source);
  }
  for (auto* const source : leaving) {
    take_cells(*source, sink);  // What it put before it left comes before its loss.
    bool const has_ended = links_[index(source->rank)].has_ended;
    report_loss(source->rank, has_ended ? "its process ended" : "it closed the connection", sink);
  }
  return true;
}

bool ShmEndpoint::read_notices(int peer, ArrivalSink& sink) {
  auto& link = links_[index(peer)];
  bool is_open = true;
  for (;;) {
    std::array<char, kMaxNoticeBytes> buffer;
    ssize_t const count = recv(link.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0 || (count < 0 && errno != EAGAIN)) is_open = false;
    if (count <= 0) break;
    link.input.insert(link.input.end(), buffer.data(), buffer.data() + count);
  }
  for (;;) {
    std::uint32_t length = 0;
    if (link.input.size() < sizeof length) break;
    std::memcpy(&length, link.input.data(), sizeof length);
    if (length > kMaxNoticeBytes) return false;
    if (link.input.size() < sizeof length + length) break;
    sink.notice(peer, std::string_view(link.input.data() + sizeof length, length));
    link.input.erase(link.input.begin(), link.input.begin() + static_cast<std::ptrdiff_t>(sizeof length + length));
  }
  return is_open;
}

void ShmEndpoint::report_loss(int peer, std::string_view reason, ArrivalSink& sink) {
  auto& link = links_[index(peer)];
  link.lost = true;
  epoll_ctl(lifelines_.get(), EPOLL_CTL_DEL, link.socket.get(), nullptr);
  if (link.pidfd.valid()) epoll_ctl(lifelines_.get(), EPOLL_CTL_DEL, link.pidfd.get(), nullptr);
  sink.lost(peer, reason);
}

}  // namespace headway::comm
