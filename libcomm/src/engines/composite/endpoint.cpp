#include "engines/composite/endpoint.hpp"

#include "engines/epoll.hpp"

#include <sys/epoll.h>

#include <array>

namespace headway::comm {
namespace {

constexpr char const* kName = "composite endpoint";

}  // namespace

CompositeEndpoint::CompositeEndpoint(std::unique_ptr<Endpoint> same_host, std::unique_ptr<Endpoint> remote,
                                     std::vector<bool> peer_is_same_host)
    : same_host_(std::move(same_host)),
      remote_(std::move(remote)),
      peer_is_same_host_(std::move(peer_is_same_host)),
      lifelines_(make_epoll(kName)),
      activity_(make_epoll(kName)) {
  expects(same_host_->rank() == remote_->rank() && same_host_->size() == remote_->size(),
          "both engines must be of one rank and group");
  expects(peer_is_same_host_.size() == static_cast<std::size_t>(size()), "one entry is needed for each rank");
  expects(same_host_->landing().data() == remote_->landing().data(), "both engines must land in one segment");
  for (auto const* engine : {same_host_.get(), remote_.get()}) {
    expects(engine->lifeline_fd() >= 0 && engine->activity_fd() >= 0, "an engine must have descriptors to be combined");
    watch(lifelines_, engine->lifeline_fd(), kName);
    watch(activity_, engine->activity_fd(), kName);
  }
  watch(activity_, bell_.fd(), kName);
}

void CompositeEndpoint::submit() {
  // Remote first: what the network takes on its way overlaps with the copies of the other.
  remote_->submit();
  same_host_->submit();
}

bool CompositeEndpoint::poll(ArrivalSink& sink) {
  bool const found_here = same_host_->poll(sink);
  bool const found_remote = remote_->poll(sink);
  return found_here || found_remote;
}

void CompositeEndpoint::arm() {
  bell_.arm();
  same_host_->arm();
  remote_->arm();
}

void CompositeEndpoint::disarm() {
  remote_->disarm();
  same_host_->disarm();
  bell_.disarm();
}

void CompositeEndpoint::sleep(Deadline deadline) {
  std::array<epoll_event, 3> events;
  int const count = ::epoll_wait(activity_.get(), events.data(), events.size(), milliseconds_until(deadline));
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<std::size_t>(i)].data.fd == bell_.fd()) bell_.drain();
  }
  bell_.drain();
  // These do not block: an engine may take note in its sleep() of what ended it.
  same_host_->sleep(Deadline::min());
  remote_->sleep(Deadline::min());
}

}  // namespace headway::comm
