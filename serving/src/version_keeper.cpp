// SPDX-License-Identifier: Apache-2.0

// How ranks change the version of their model while they serve.
//
// Idea: rank 0 watches the package and leads. A new version is loaded beside the present one, so for some time there is
// memory for two. A batch reads one version at all owners: its keys name it. So no barrier is needed, only an order.
//
//   rank 0                       rank r
//   loads version 2
//   load 2          ->           loads version 2; from now on it answers keys of 1 and 2
//                   <-           ready 2, or failed 2 with the reason
//   switch 2        ->           new batches are of version 2; those in flight end with 1
//                   <-           left 1, once its last batch of 1 has ended
//   drop 1          ->           frees version 1
//
// Ranks of a ring also agree on the first batch of the new version, between `ready` and `switch` (ring_fetcher.cpp):
//
//   plan 2, T       ->           its batches from number T on read version 2
//                   <-           ready 2, or failed 2 if it has begun batch T
//
// Example: rank 1 switches before rank 2 has got the message. Rank 2 has said ready, so it answers keys of version 2,
//   though its own batches are still of version 1.
// If a rank has failed, rank 0 sends `drop 2`, and all go on with version 1. It tries again when the package changes.
// Invariants: a rank begins a batch of a version only when all ranks have it, and frees a version only when no rank has
//   a batch of it. A lost rank ends all this; the next group begins with agree(), after which all have the version of
//   rank 0.
// The messages of two ranks are in order. Each has kMessageBytes: kind, number of the version, text.

#include "headway/serving/version_keeper.hpp"

#include "headway/base/log.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

namespace headway::serving {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMessageBytes = 1024;
constexpr std::uint64_t kMatch = std::uint64_t{1} << 58;
constexpr milliseconds kSlice{100};  ///< Time between two looks at the request to stop.

enum class Kind : std::uint64_t { kLoad, kReady, kFailed, kPlan, kCancel, kSwitch, kLeft, kDrop };

struct Message {
  Kind kind = Kind::kLoad;
  std::uint64_t number = 0;
  std::array<char, kMessageBytes - 2 * sizeof(std::uint64_t)> text{};

  Message() = default;
  Message(Kind of_kind, std::uint64_t of_number, std::string const& with_text = "") : kind(of_kind), number(of_number) {
    std::copy_n(with_text.begin(), std::min(with_text.size(), text.size() - 1), text.begin());
  }
};
static_assert(sizeof(Message) == kMessageBytes);

/// The request to stop ends a wait.
struct Stopped {};

void log(LoadedVersion const& version, comm::Group* group, std::string const& text) {
  base::log(base::LogLevel::kInfo, "serving", group == nullptr ? 0 : group->rank(),
            "version " + version.model->manifest().version + " of " + version.folder.string() + " " + text);
}

}  // namespace

/// Messages between the ranks of a group.
class VersionKeeper::Ranks {
 public:
  Ranks(comm::Group* group, std::stop_token stop) : group_(group), stop_(std::move(stop)) {}

  [[nodiscard]] comm::Group* group() const { return group_; }
  [[nodiscard]] int size() const { return group_ == nullptr ? 1 : group_->size(); }
  [[nodiscard]] bool leads() const { return group_ == nullptr || group_->rank() == 0; }

  /// Sends to all ranks but rank 0.
  void tell_all(Message const& message) {
    for (int rank = 1; rank < size(); ++rank) send(rank, message);
  }
  void tell_leader(Message const& message) { send(0, message); }
  /// Hears an answer of each other rank. @returns the reason of one that has failed; empty if none has
  [[nodiscard]] std::string failure_of_others() {
    std::string failure;
    for (int rank = 1; rank < size(); ++rank) {
      auto const answer = hear(rank);
      if (answer.kind == Kind::kFailed) failure = "rank " + std::to_string(rank) + ": " + answer.text.data();
    }
    return failure;
  }
  [[nodiscard]] Message hear(int rank) {
    auto const message = std::make_shared<Message>();
    auto const operation = group_->receive(std::as_writable_bytes(std::span(message.get(), 1)), rank, kMatch, 0);
    wait(*operation, operation, message);
    return *message;
  }

 private:
  void send(int rank, Message const& message) {
    auto const copy = std::make_shared<Message const>(message);
    auto const operation = group_->send(std::as_bytes(std::span(copy.get(), 1)), rank, kMatch, 0);
    wait(*operation, operation, copy);
  }
  /// @param operation, memory kept until the operation ends
  void wait(comm::Operation& waited, comm::OperationPtr const& operation, std::shared_ptr<void const> const& memory) {
    while (!waited.done()) {
      static_cast<void>(group_->wait(waited, kSlice));
      if (waited.done() || !stop_.stop_requested()) continue;
      group_->on_done(waited, [operation, memory] {});
      throw Stopped();
    }
    if (auto const status = waited.status(); !status.ok()) throw base::OperationError(status);
  }

  comm::Group* group_;
  std::stop_token stop_;
};

VersionKeeper::VersionKeeper(std::filesystem::path package, Load load, milliseconds poll_interval)
    : package_(std::move(package)), load_(std::move(load)), poll_interval_(poll_interval), current_(load_(package_)) {}

std::string VersionKeeper::prepare(std::filesystem::path const& folder, std::uint64_t number) {
  // Ranks of several hosts may have copies of a package under a path of their own.
  auto where = folder;
  try {
    if (package_number(package_) == number) where = package_;
  } catch (PackageError const&) {
  }
  try {
    auto loaded = load_(where);
    if (loaded.number() != number) return where.string() + " has another version by now";
    auto difference = describe_difference(current_.model->manifest(), loaded.model->manifest());
    if (!difference.empty()) return loaded.folder.string() + " is of another model: " + difference;
    next_ = std::move(loaded);
    return "";
  } catch (std::exception const& error) {
    return error.what();
  }
}

std::string VersionKeeper::add_next(Engine& engine) {
  try {
    engine.add_model(next_.model, next_.tables);
    return "";
  } catch (base::UsageError const& error) {
    auto failure = next_.folder.string() + ": " + error.what();
    next_ = {};
    return failure;
  }
}

void VersionKeeper::agree(comm::Group& group) {
  Ranks ranks(&group, {});
  if (ranks.leads()) {
    ranks.tell_all({Kind::kLoad, current_.number(), current_.folder.string()});
    auto const failure = ranks.failure_of_others();
    ranks.tell_all({failure.empty() ? Kind::kSwitch : Kind::kFailed, current_.number(), failure});
    if (!failure.empty()) throw PackageError(failure);
    return;
  }
  auto const wanted = ranks.hear(0);
  bool const has_it = wanted.number == current_.number();
  auto const failure = has_it ? "" : prepare(wanted.text.data(), wanted.number);
  ranks.tell_leader({failure.empty() ? Kind::kReady : Kind::kFailed, wanted.number, failure});
  auto const outcome = ranks.hear(0);
  if (outcome.kind == Kind::kFailed) throw PackageError(outcome.text.data());
  if (!has_it) current_ = std::exchange(next_, {});
}

void VersionKeeper::run(Engine& engine, comm::Group* group, std::stop_token const& stop) {
  Ranks ranks(group, stop);
  next_ = {};
  try {
    if (ranks.leads()) {
      lead(engine, ranks, stop);
    } else {
      while (true) follow(engine, ranks);
    }
  } catch (Stopped const&) {
  } catch (base::OperationError const&) {  // The engine has lost the same rank, and says so.
  } catch (std::exception const& error) {
    base::log(base::LogLevel::kWarning, "serving", group == nullptr ? 0 : group->rank(),
              std::string("there will be no new versions: ") + error.what());
  }
}

void VersionKeeper::lead(Engine& engine, Ranks& ranks, std::stop_token const& stop) {
  while (!stop.stop_requested() && engine.is_ready()) {
    std::uint64_t number = current_.number();
    try {
      number = package_number(package_);
    } catch (PackageError const& error) {
      if (refused_ == 0) {
        base::log(base::LogLevel::kWarning, "serving", 0, std::string("no new version: ") + error.what());
        engine.count_refused_version();
      }
      refused_ = number;  // Say it once.
    }
    if (number == current_.number() || number == refused_) {
      std::this_thread::sleep_for(poll_interval_);
      continue;
    }
    auto failure = prepare(package_, number);
    if (failure.empty()) {
      failure = add_next(engine);
    }
    if (failure.empty()) {
      ranks.tell_all({Kind::kLoad, number, next_.folder.string()});
      failure = ranks.failure_of_others();
    }
    if (failure.empty() && engine.plans_switches()) failure = plan(engine, ranks, number);
    if (failure.empty()) {
      refused_ = 0;
      ranks.tell_all({Kind::kSwitch, number});
      change(engine, ranks);
      continue;
    }
    base::log(base::LogLevel::kWarning, "serving", 0, "a new version is refused: " + failure);
    engine.count_refused_version();
    refused_ = number;
    if (next_.model == nullptr) continue;
    ranks.tell_all({Kind::kDrop, number});
    engine.remove_model(number);
    next_ = {};
  }
}

std::string VersionKeeper::plan(Engine& engine, Ranks& ranks, std::uint64_t number) {
  auto const first = engine.hold_for_switch();
  ranks.tell_all({Kind::kPlan, number, std::to_string(first)});
  auto failure = ranks.failure_of_others();
  if (failure.empty() && !engine.plan_switch(number, first))
    failure = "rank 0 has begun batch " + std::to_string(first);
  if (failure.empty()) return "";
  // This rank goes on only when no other one will change at `first`.
  ranks.tell_all({Kind::kCancel, number});
  static_cast<void>(ranks.failure_of_others());
  engine.cancel_switch();
  return failure;
}

// Rank 0 frees the old version only when the others have left it, and they when rank 0 says so.
void VersionKeeper::change(Engine& engine, Ranks& ranks) {
  auto const old = current_.number();
  engine.switch_to(next_.number());
  current_ = std::exchange(next_, {});
  log(current_, ranks.group(), "is served");
  engine.wait_for_batches_of(old);
  if (ranks.leads()) {
    for (int rank = 1; rank < ranks.size(); ++rank) static_cast<void>(ranks.hear(rank));
    ranks.tell_all({Kind::kDrop, old});
  } else {
    ranks.tell_leader({Kind::kLeft, old});
    static_cast<void>(ranks.hear(0));
  }
  engine.remove_model(old);
}

void VersionKeeper::follow(Engine& engine, Ranks& ranks) {
  auto const wanted = ranks.hear(0);
  auto failure = prepare(wanted.text.data(), wanted.number);
  if (failure.empty()) failure = add_next(engine);
  if (!failure.empty()) engine.count_refused_version();
  ranks.tell_leader({failure.empty() ? Kind::kReady : Kind::kFailed, wanted.number, failure});
  auto next = ranks.hear(0);
  if (next.kind == Kind::kPlan) {
    bool const is_planned = engine.plan_switch(wanted.number, std::stoull(next.text.data()));
    ranks.tell_leader({is_planned ? Kind::kReady : Kind::kFailed, wanted.number, is_planned ? "" : "it is late"});
    next = ranks.hear(0);
  }
  if (next.kind == Kind::kSwitch) return change(engine, ranks);
  if (next.kind == Kind::kCancel) {
    engine.cancel_switch();
    ranks.tell_leader({Kind::kReady, wanted.number});
    static_cast<void>(ranks.hear(0));  // kDrop
  }
  if (next_.model != nullptr) engine.remove_model(wanted.number);
  next_ = {};
}

}  // namespace headway::serving
