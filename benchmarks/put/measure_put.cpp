// SPDX-License-Identifier: Apache-2.0

// Times messages of several systems in turns. Whatever disturbs the host, such as another job or a changing clock
// rate, then hits all systems alike, and each turn of one can be compared with the same turn of another.
//
// Example: 2 systems, 3 rounds. The turns are A B | B A | A B | B A; the first round warms up and is not counted. Odd
// rounds go backwards, so that neither system always comes first.
//
// Each system is checked before and after the measurement: 16 messages (kSlots) with bytes of their own in both
// directions, compared byte by byte in the receiver's slots. Messages of a ping-pong also carry a count that is
// checked while the clock runs: a transport that is fast because it loses data must not win.

#include "measure_put.hpp"

#include "json_object.hpp"
#include "sample_summary.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace headway::benchmarks {

namespace {

/// Seconds of one system, one entry per turn.
using Samples = std::vector<double>;

/// Sends a message, and counts it: the other rank awaits as many.
void send(NamedChannel& system, std::size_t bytes) {
  system.channel.send(bytes);
  ++system.num_sent;
}

void wait_for(NamedChannel& system, std::uint64_t count) { system.channel.wait_for(system.num_awaited += count); }

/// Byte at `offset` of a message. Differs for ranks, messages and neighbouring offsets, so that a byte of another
/// message or offset is noticed.
std::byte pattern(int rank, std::uint64_t message, std::size_t offset) {
  return static_cast<std::byte>(static_cast<std::uint64_t>(rank) * 131 + message * 29 + offset * 7 + offset / 251);
}

/// Sends kSlots different messages in both directions and compares every byte.
void exchange_and_check(NamedChannel& system, int rank, std::size_t bytes, RankBarrier& barrier) {
  auto const source = system.channel.source().first(bytes);
  std::uint64_t const first_sent = system.num_sent, first_awaited = system.num_awaited;
  for (std::uint64_t i = 0; i < MessageChannel::kSlots; ++i) {
    std::ranges::fill(system.channel.slot(first_awaited + i), std::byte{0xa5});
  }
  barrier.wait();
  for (std::uint64_t message = first_sent; message < first_sent + MessageChannel::kSlots; ++message) {
    for (std::size_t offset = 0; offset < bytes; ++offset) source[offset] = pattern(rank, message, offset);
    send(system, bytes);
    // Wait here: the next message puts other bytes in the same source.
    wait_for(system, 1);
    system.channel.flush();
    barrier.wait();
  }
  for (std::uint64_t message = first_awaited; message < system.num_awaited; ++message) {
    auto const received = system.channel.slot(message);
    for (std::size_t offset = 0; offset < bytes; ++offset) {
      if (received[offset] != pattern(1 - rank, message, offset))
        throw std::runtime_error(system.name + ": a wrong byte");
    }
  }
  barrier.wait();
}

/// Sends one message at a time back and forth. Its first bytes are a count that the receiver checks. @returns seconds
/// per message.
double ping_pong(NamedChannel& system, int rank, std::size_t bytes, std::size_t calls) {
  auto const source = system.channel.source();
  auto const begin = std::chrono::steady_clock::now();
  for (std::size_t call = 0; call < calls; ++call) {
    if (rank == 0) {
      std::memcpy(source.data(), &system.num_sent, std::min(bytes, sizeof system.num_sent));
      send(system, bytes);
    }
    std::uint64_t const seq = system.num_awaited;
    wait_for(system, 1);
    if (std::memcmp(system.channel.slot(seq).data(), &seq, std::min(bytes, sizeof seq)) != 0) {
      throw std::runtime_error(system.name + ": a wrong count");
    }
    system.channel.flush();
    if (rank == 0) continue;
    std::memcpy(source.data(), &system.num_sent, std::min(bytes, sizeof system.num_sent));
    send(system, bytes);
  }
  std::chrono::duration<double> const passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / static_cast<double>(2 * calls);
}

/// Sends in one direction, as many in flight as the system allows, until an answer confirms the last one. @returns
/// seconds per message.
double stream(NamedChannel& system, int rank, std::size_t bytes, std::size_t calls) {
  auto const begin = std::chrono::steady_clock::now();
  if (rank == 0) {
    for (std::size_t call = 0; call < calls; ++call) send(system, bytes);
    wait_for(system, 1);
  } else {
    wait_for(system, calls);
    send(system, sizeof(std::uint64_t));
  }
  system.channel.flush();
  std::chrono::duration<double> const passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / static_cast<double>(calls);
}

double take_turn(PutSettings const& settings, NamedChannel& system, int rank, std::size_t bytes, std::size_t calls) {
  return settings.mode == PutMode::kPingPong ? ping_pong(system, rank, bytes, calls)
                                             : stream(system, rank, bytes, calls);
}

/// Seconds per message of each system and turn, without the first round.
std::vector<Samples> take_turns(PutSettings const& settings, int rank, std::size_t bytes,
                                std::vector<NamedChannel>& systems, RankBarrier& barrier) {
  std::vector<Samples> samples(systems.size());
  for (std::size_t round = 0; round <= settings.rounds; ++round) {
    for (std::size_t turn = 0; turn < systems.size(); ++turn) {
      std::size_t const which = round % 2 == 0 ? turn : systems.size() - 1 - turn;
      barrier.wait();
      double const seconds = take_turn(settings, systems[which], rank, bytes, settings.calls);
      if (round > 0) samples[which].push_back(seconds);  // The first round warms up.
    }
  }
  return samples;
}

/// Speed over that of `reference`, turn by turn.
SampleSummary compare(Samples const& reference, Samples const& samples) {
  Samples ratios(samples.size());
  std::ranges::transform(reference, samples, ratios.begin(), [](double theirs, double ours) { return theirs / ours; });
  return summarize(std::move(ratios));
}

void print_points(PutSettings const& settings, std::string const& device, std::size_t bytes,
                  std::vector<NamedChannel> const& systems, std::vector<Samples> const& samples) {
  bool const is_ping_pong = settings.mode == PutMode::kPingPong;
  for (std::size_t which = 0; which < systems.size(); ++which) {
    JsonObject point, params;
    params.add("ranks", 2).add("size_bytes", bytes).add("calls_per_sample", settings.calls).add("device", device);
    point.add("name", is_ping_pong ? "put_ping_pong" : "put_stream").add("params", params);
    point.add("system", systems[which].name);
    auto const summary = summarize(samples[which]);
    point.add("median_s", summary.median_s).add("p5_s", summary.p5_s).add("p95_s", summary.p95_s);
    point.add("mean_s", summary.mean_s).add("samples", summary.samples);
    point.add("rate", static_cast<double>(bytes) / summary.median_s / 1e9).add("unit", "GB/s");
    // Fields of a summary are called seconds, but here they are ratios.
    auto const ratio = compare(samples.back(), samples[which]);
    point.add("ratio", ratio.median_s).add("ratio_p5", ratio.p5_s).add("ratio_p95", ratio.p95_s);
    print_point(point);
  }
}

}  // namespace

void measure_put(PutSettings const& settings, int rank, std::string const& device, std::vector<NamedChannel>& systems,
                 RankBarrier& barrier) {
  for (std::size_t const bytes : settings.sizes) {
    for (auto& system : systems) exchange_and_check(system, rank, bytes, barrier);
    auto const samples = take_turns(settings, rank, bytes, systems, barrier);
    for (auto& system : systems) exchange_and_check(system, rank, bytes, barrier);
    if (rank == 0) print_points(settings, device, bytes, systems, samples);
  }
}

}  // namespace headway::benchmarks
