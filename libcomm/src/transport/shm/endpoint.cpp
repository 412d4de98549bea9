// SPDX-License-Identifier: Apache-2.0

// Shared-memory transport: puts are direct copies with a tag, without a system call per message.
//
// Idea: each rank owns one memory file with an Inbox per source, and a receive buffer with a part per source; its peers
// map it. put() copies the payload to its offset in the receiver's receive buffer, fills the next Cell of its Inbox
// there, and stores the cell's `word` with release order. poll() loads the next word of every source with acquire
// order.
// A header always travels in the cell. A payload does too if both fit into kCellBytes; poll() then copies them to the
// receive buffer.
//
// Example: message 64 of a pair uses cell 0 again, as message 0 did. Its word holds 65 in the upper half. A receiver
// that has taken 64 messages waits for 65 there, so it does not mistake the old 1 for a new message. No cell is ever
// cleared. If the receiver has taken no message yet, the sender finds 64 unread and put() returns kWouldBlock.
//
// Invariants:
// - A sender writes a cell only if fewer than kCells of its messages are unread. It reads the receiver's count
//   (`taken`) only when its last known value says that the ring is full.
// - Lost wake-ups are impossible: submit() fences between the words and its look at `armed`, arm() fences between
//   `armed` and the caller's next poll(). See asymmetric_fence.hpp.
// - The receiver trusts no size or offset in a cell: a peer writes that memory.
// - get() checks after the copy that the peer lives and has not called retract(); only then are the bytes valid.
// Complexity: put() is one copy and one cache line; poll() is one load per peer on the host. An inbox has 4 KiB.
// Source: process_vm_readv(2), membarrier(2). A sequence number per cell is the idea of Vyukov's bounded queue.

#include "transport/shm/endpoint.hpp"

#include "system/available_cores.hpp"
#include "system/epoll.hpp"
#include "system/small_copy.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace headway::comm {

namespace {

constexpr char const* kName = "transport shm";
/// A caller that spins and never sleeps must detect a lost peer too.
constexpr unsigned kPollsPerControlCheck = 4096;
/// For larger payloads the hardware prefetcher of a running copy does as well.
constexpr std::size_t kMaxFetchedBytes = 1024;

/// Prefetches the cache line of `address` for writing. Never faults.
void fetch_for_writing(void const* address) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<char const*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

/// Word of the message that follows `count` earlier ones.
std::uint64_t cell_word(std::uint64_t count, Tag tag) { return (count + 1) << 32 | tag.packed(); }

}  // namespace

std::unique_ptr<Endpoint> make_shm_endpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                                            ShmSettings const& settings) {
  return std::make_unique<ShmEndpoint>(rank, size, std::move(control_sockets), settings);
}

ShmEndpoint::ShmEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets, ShmSettings const& settings)
    : rank_(rank),
      size_(size),
      part_offset_(settings.part_of(rank).offset),
      links_(shm::take_links(std::move(control_sockets))),
      permission_(settings.allow_get ? shm::permit_reading(links_) : shm::ReadPermission()),
      own_(shm::Region::create(size, settings.receive_buffer_bytes)),
      outboxes_(links_.size()),
      control_sockets_(make_epoll(kName)),
      activity_(make_epoll(kName)) {
  assert(settings.part_bytes * static_cast<std::size_t>(size) <= settings.receive_buffer_bytes &&
         "the parts of all ranks must fit into the receive buffer");
  shm::LinkSettings const link_settings{
      .own = own_, .own_bell = bell_.fd(), .part = settings.part_of(rank), .allow_get = settings.allow_get};
  shm::exchange_links(rank, links_, link_settings, settings.patience);
  own_.close_fd();
  for (int distance = 1; distance < size; ++distance) {
    int const peer = (rank + distance) % size;
    auto const& link = links_[index(peer)];
    if (!link.socket.valid()) continue;
    auto const part = settings.part_of(peer);
    sources_.push_back(
        {.rank = peer, .inbox = &own_.inbox(peer), .part = own_.receive_buffer().subspan(part.offset, part.bytes)});
    outboxes_[index(peer)].inbox = &link.region.inbox(rank);
    outboxes_[index(peer)].part = link.region.receive_buffer();
    watch(control_sockets_, link.socket.fd(), kName);
    if (link.pidfd.valid()) watch(control_sockets_, link.pidfd.get(), kName);
  }
  for (int const fd : {control_sockets_.get(), bell_.fd()}) watch(activity_, fd, kName);
}

PeerTraits ShmEndpoint::traits(int peer) const {
  return {.transport = "shm", .can_get = links_[index(peer)].can_get, .copies_at_put = true};
}

HostShare ShmEndpoint::host_share() const {
  HostShare share;
  cpu_set_t cores = own_cores();
  for (auto const& source : sources_) {
    ++share.num_ranks;
    CPU_OR(&cores, &cores, &links_[index(source.rank)].cores);
  }
  share.num_cores = num_usable(cores);
  return share;
}

Status ShmEndpoint::put(Destination const& destination, std::span<std::byte const> header,
                        std::span<std::byte const> payload, Tag tag) {
  expects(destination.peer >= 0 && destination.peer < size_ && outboxes_[index(destination.peer)].inbox != nullptr,
          "put: no such peer on this host");
  expects(destination.window == kReceiveBuffer, "put: transport shm has no windows");
  static_assert(kMaxHeaderBytes <= shm::kCellBytes);
  expects(header.size() <= kMaxHeaderBytes, "put: the header is larger than kMaxHeaderBytes");
  expects(destination.offset % shm::kOffsetUnit == 0, "put: the offset is not a multiple of 64");
  std::size_t const needed = header.empty() && payload.empty() ? 0 : kHeaderBytes + payload.size();
  Outbox& outbox = outboxes_[index(destination.peer)];
  // An empty put writes nothing. For any other, an offset below this rank's part wraps around and fails the check.
  std::uint64_t const offset = needed == 0 ? 0 : destination.offset - part_offset_;
  expects(offset <= outbox.part.size() && needed <= outbox.part.size() - offset,
          "put: the range leaves this rank's part of the receive buffer");

  if (outbox.num_put - outbox.known_taken >= shm::kCells) {
    outbox.known_taken = outbox.inbox->taken.load(std::memory_order_acquire);  // Partner: take_cells().
    if (outbox.num_put - outbox.known_taken >= shm::kCells) return Status::would_block();
  }
  // A rank that puts to one peer mostly puts to the next rank afterwards. Prefetching much earlier is useless: the
  // receiver polls this line and would take it back before it is written.
  Outbox const& next = outboxes_[index(destination.peer + 1 < size_ ? destination.peer + 1 : 0)];
  if (next.inbox != nullptr) fetch_for_writing(&next.next_cell());
  shm::Cell& cell = outbox.next_cell();
  bool const is_inline = header.size() + payload.size() <= shm::kCellBytes;
  cell.offset_units = static_cast<std::uint32_t>(offset / shm::kOffsetUnit);
  cell.header_bytes = static_cast<std::uint16_t>(header.size());
  cell.payload_bytes = static_cast<std::uint16_t>(is_inline ? payload.size() : 0);
  copy_bytes(cell.bytes.data(), header.data(), header.size());
  std::byte* const to = is_inline ? cell.bytes.data() + header.size() : outbox.part.data() + offset + kHeaderBytes;
  copy_bytes(to, payload.data(), payload.size());
  cell.word.store(cell_word(outbox.num_put, tag), std::memory_order_release);  // Partner: take_cells().
  ++outbox.num_put;
  if (!std::exchange(outbox.has_unsubmitted, true)) unsubmitted_.push_back(destination.peer);
  return {};
}

void ShmEndpoint::prepare(Destination const& destination, std::size_t header_bytes, std::size_t payload_bytes) {
  Outbox const& outbox = outboxes_[index(destination.peer)];
  if (payload_bytes == 0) return fetch_for_writing(&outbox.next_cell());
  if (header_bytes + payload_bytes <= shm::kCellBytes) return;
  // Stores that miss are served one after the other. Prefetched, the lines of all peers arrive at the same time.
  std::byte* const payload = outbox.part.data() + (destination.offset - part_offset_) + kHeaderBytes;
  for (std::size_t at = 0; at < std::min(payload_bytes, kMaxFetchedBytes); at += 64) fetch_for_writing(payload + at);
}

void ShmEndpoint::submit() {
  if (unsubmitted_.empty()) return;
  // Orders the cells' words before the look at `armed`; partner: arm().
  fence_.fence_ringer();
  for (int const peer : unsubmitted_) {
    outboxes_[index(peer)].has_unsubmitted = false;
    if (links_[index(peer)].region.control().armed.load(std::memory_order_relaxed) == 0) continue;
    std::uint64_t const one = 1;
    [[maybe_unused]] auto const written = write(links_[index(peer)].bell.get(), &one, sizeof one);
  }
  unsubmitted_.clear();
}

bool ShmEndpoint::poll(ArrivalSink& sink) {
  bool found = false;
  if (control_is_ready_.load(std::memory_order_relaxed) || ++num_polls_ % kPollsPerControlCheck == 0) [[unlikely]] {
    found = check_control_sockets(sink);
  }
  fetch_arrivals();
  for (auto& source : sources_) {
    if (!source.has_next()) continue;
    take_cells(source, sink);
    found = true;
  }
  return found;
}

void ShmEndpoint::fetch_arrivals() const {
  // The processor does not look far enough ahead to overlap the misses of several sources. Prefetched, their lines
  // arrive at the same time.
  for (auto const& source : sources_) __builtin_prefetch(&source.next_cell());
  if (!payloads_in_place_) return;
  for (auto const& source : sources_) {
    if (!source.has_next()) continue;  // An absent message's line is left to its sender, who is writing it.
    __builtin_prefetch(source.part.data() + source.next_cell().offset_units * shm::kOffsetUnit + kHeaderBytes);
  }
}

void ShmEndpoint::take_cells(Source& source, ArrivalSink& sink) {
  while (source.has_next()) {
    shm::Cell const& cell = source.next_cell();
    auto const tag = static_cast<std::uint32_t>(cell.word.load(std::memory_order_relaxed));
    payloads_in_place_ = cell.payload_bytes == 0;
    if (cell.header_bytes != 0 || cell.payload_bytes != 0) place_inline(cell, source.part);
    ++source.num_taken;
    sink.arrived(source.rank, Tag::unpack(tag));
  }
  source.inbox->taken.store(source.num_taken, std::memory_order_release);  // Partner: put().
}

void ShmEndpoint::place_inline(shm::Cell const& cell, std::span<std::byte> part) {
  std::size_t const header_bytes = cell.header_bytes, payload_bytes = cell.payload_bytes;
  std::size_t const offset = std::size_t{cell.offset_units} * shm::kOffsetUnit;
  // A peer writes this memory: trust no value in it.
  if (header_bytes + payload_bytes > shm::kCellBytes || offset > part.size() ||
      kHeaderBytes + payload_bytes > part.size() - offset) {
    return;
  }
  std::byte* const to = part.data() + offset;
  // A copy of constant size is faster. The rest of the header area is unused.
  if (header_bytes != 0) std::memcpy(to, cell.bytes.data(), shm::kCellBytes);
  copy_bytes(to + kHeaderBytes, cell.bytes.data() + header_bytes, payload_bytes);
}

Status ShmEndpoint::get(int peer, std::uint64_t address, std::span<std::byte> local) {
  auto const& link = links_[index(peer)];
  expects(link.can_get, "get: the memory of that peer cannot be read");
  auto const lost = [&](std::string const& why) {
    return Status(StatusCode::kPeerLost, "rank " + std::to_string(peer) + " is lost (" + why + ")");
  };
  while (!local.empty()) {
    iovec const to{.iov_base = local.data(), .iov_len = local.size()};
    iovec const from{.iov_base = reinterpret_cast<void*>(address), .iov_len = local.size()};
    ssize_t const count = process_vm_readv(link.pid, &to, 1, &from, 1, 0);
    if (count <= 0) return lost(std::string("process_vm_readv: ") + std::strerror(count == 0 ? EIO : errno));
    local = local.subspan(static_cast<std::size_t>(count));
    address += static_cast<std::uint64_t>(count);
  }
  // The kernel may give the pid of an ended process to another one. If the pidfd shows no end after the read, the bytes
  // are the peer's.
  if (is_readable(link.pidfd.get())) return lost("its process ended");
  // The peer sets `retracted` before its memory may change, so bytes read before it is set are valid. Partner:
  // retract().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (link.region.control().retracted.load(std::memory_order_acquire) == 0) return {};
  return {StatusCode::kAborted, "rank " + std::to_string(peer) + " has given up"};
}

bool ShmEndpoint::claim(int owner, std::uint64_t offset, std::uint64_t value) {
  bool const is_own = owner == rank_;
  auto const receive_buffer = is_own ? own_.receive_buffer() : outboxes_[index(owner)].part;
  std::uint64_t const begin = offset - (is_own ? 0 : part_offset_);
  expects(offset % sizeof value == 0 && begin <= receive_buffer.size() && sizeof value <= receive_buffer.size() - begin,
          "claim: the word is outside of this rank's part of the receive buffer");
  std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(receive_buffer.data() + begin));
  std::uint64_t found = word.load(std::memory_order_relaxed);
  while (found < value) {
    if (word.compare_exchange_weak(found, value, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void ShmEndpoint::retract() noexcept {
  own_.control().retracted.store(1, std::memory_order_relaxed);
  // Orders the flag before everything that the caller does to its memory afterwards. On aarch64 a store alone, even a
  // sequentially consistent one, would let later plain accesses overtake it. Partner: the fence in get().
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool ShmEndpoint::open_window(int /*peer*/, WindowId /*window*/, std::span<std::byte> /*memory*/) {
  throw UsageError("open_window: transport shm has no windows");
}
void ShmEndpoint::close_window(int /*peer*/, WindowId /*window*/) {}

void ShmEndpoint::arm() {
  own_.control().armed.exchange(1, std::memory_order_seq_cst);  // Partner: submit().
  fence_.fence_sleeper();
}

void ShmEndpoint::disarm() { own_.control().armed.store(0, std::memory_order_relaxed); }

}  // namespace headway::comm
