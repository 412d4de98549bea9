// How a device group meets its peers: hellos over the group, then descriptors of memory from mailbox to mailbox.

#include "device_group_impl.hpp"
#include "rendezvous/host_identity.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace headway::comm {

namespace {

/// Above all that torch's tags may be.
constexpr std::uint64_t kHelloMatch = std::uint64_t{1} << 40;

struct Hello {
  std::array<char, 96> host;
  std::array<char, 64> mailbox;
  nvlink::Nonce nonce;
  CUuuid device;
  std::uint64_t host_bytes, device_bytes, slot_bytes;
};
static_assert(std::is_trivially_copyable_v<Hello>);

template <std::size_t kSize>
std::array<char, kSize> to_array(std::string const& text) {
  std::array<char, kSize> out{};
  std::memcpy(out.data(), text.data(), std::min(text.size(), kSize - 1));
  return out;
}

std::span<std::byte> bytes_of(Hello& hello) { return std::as_writable_bytes(std::span(&hello, 1)); }

}  // namespace

void DeviceGroupImpl::meet_peers(Exchange const& exchange) {
  std::vector<int> peers;
  auto const add_new = [&](Block const& block) {
    bool const is_met = exchange.channel->set->links[static_cast<std::size_t>(block.peer)] != nullptr;
    if (!is_met && std::ranges::find(peers, block.peer) == peers.end()) peers.push_back(block.peer);
  };
  std::ranges::for_each(exchange.sends, add_new);
  std::ranges::for_each(exchange.receives, add_new);
  if (!peers.empty()) make_links(*exchange.channel->set, peers, nullptr);
}

void DeviceGroupImpl::make_links(LinkSet& set, std::span<int const> peers,
                                 std::shared_ptr<nvlink::SharedSegment> const& segment) {
  auto const own_host = host_identity();
  std::vector<std::shared_ptr<nvlink::Link>> links;
  std::vector<Hello> own(peers.size()), theirs(peers.size());
  std::vector<OperationPtr> operations;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    auto memory =
        segment != nullptr ? segment : std::make_shared<nvlink::SharedSegment>(context_, set.layout.device_bytes);
    links.push_back(std::make_shared<nvlink::Link>(context_, set.layout, std::move(memory), rank_, peers[i]));
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {  // Not sooner: what is posted must not outlive this call.
    own[i] = {.host = to_array<96>(own_host),
              .mailbox = to_array<64>(mailbox_->name()),
              .nonce = links[i]->nonce(),
              .device = context_->uuid(),
              .host_bytes = set.layout.host_bytes,
              .device_bytes = set.layout.device_bytes,
              .slot_bytes = set.layout.channels.front().slot_bytes};
    operations.push_back(group_.send(bytes_of(own[i]), peers[i], kHelloMatch, 0));
    operations.push_back(group_.receive(bytes_of(theirs[i]), peers[i], kHelloMatch, 0));
  }
  for (auto const& operation : operations) {
    if (auto status = group_.wait(*operation); !status.ok()) throw OperationError(std::move(status));
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    auto const name = "rank " + std::to_string(peers[i]);
    expects(theirs[i].host == own[i].host,
            name + " is on another host: CUDA tensors are exchanged inside one host only so far");
    expects(theirs[i].slot_bytes == own[i].slot_bytes && theirs[i].device_bytes == own[i].device_bytes &&
                theirs[i].host_bytes == own[i].host_bytes,
            name + " has slots of " + std::to_string(theirs[i].slot_bytes) + " bytes, " +
                std::to_string(theirs[i].device_bytes) + " in all, on its device, and this rank of " +
                std::to_string(own[i].slot_bytes) + ", " + std::to_string(own[i].device_bytes) +
                " in all: they must be alike");
    mailbox_->send(theirs[i].mailbox.data(), theirs[i].nonce, links[i]->descriptors(), peers[i]);
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    auto const deadline = Clock::now() + group_.timeout();
    links[i]->map_peer(mailbox_->receive(own[i].nonce, deadline, peers[i], [this] { throw_if_failed(); }));
    auto const uuid = context_->uuid();
    links[i]->shares_device = std::memcmp(&theirs[i].device, &uuid, sizeof uuid) == 0;
  }
  std::lock_guard const lock(watch_mutex_);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    met_.push_back(links[i].get());
    set.links[static_cast<std::size_t>(peers[i])] = std::move(links[i]);
  }
}

void DeviceGroupImpl::forget_links(LinkSet const& set) {
  std::lock_guard const lock(watch_mutex_);
  for (auto const& link : set.links) {
    std::erase(met_, link.get());
  }
}

}  // namespace headway::comm
