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
//   A rank that has said ready hears whether the version is taken, even if it has to stop meanwhile, and rank 0 says so
//   even then. Otherwise the ranks of a ring would wait for a plan, or change at different batches.
// The messages of two ranks are in order. Each has kMessageBytes: kind, number of the version, text.

#include "headway/serving/version_keeper.hpp"

#include "headway/base/log.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

namespace headway::serving {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMessageBytes = 1024;
constexpr std::uint64_t kMatch = std::uint64_t{1} << 58;
constexpr milliseconds kSlice{100};                ///< Time between two looks at the request to stop.
constexpr std::chrono::minutes kLongestPause{64};  ///< Between two tries of a version that is refused.
constexpr std::chrono::seconds kDecision{10};      ///< Longest wait for the outcome of a change after this request.

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
  /// From now on other ranks count on this one, so that a request to stop ends a wait later: after kDecision.
  void begin_decision() { is_deciding_ = true; }
  void end_decision() { is_deciding_ = false; }
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
      if (waited.done() || !must_stop()) continue;
      group_->on_done(waited, [operation, memory] {});
      throw Stopped();
    }
    if (auto const status = waited.status(); !status.ok()) throw base::OperationError(status);
  }

  [[nodiscard]] bool must_stop() {
    if (!stop_.stop_requested()) return false;
    auto const now = std::chrono::steady_clock::now();
    if (!stop_seen_) stop_seen_ = now;
    return !is_deciding_ || now > *stop_seen_ + kDecision;
  }

  comm::Group* group_;
  std::stop_token stop_;
  std::optional<std::chrono::steady_clock::time_point> stop_seen_;
  bool is_deciding_ = false;
};

VersionKeeper::VersionKeeper(std::filesystem::path package, Load load, std::filesystem::path note,
                             milliseconds poll_interval)
    : package_(std::move(package)),
      note_(std::move(note)),
      load_(std::move(load)),
      poll_interval_(poll_interval),
      current_(load_first()) {}

// The note has two lines: the package, as it was given, and the folder.
LoadedVersion VersionKeeper::load_first() const {
  std::string package, folder;
  std::ifstream note(note_);
  if (std::getline(note, package) && std::getline(note, folder) && package == absolute(package_).string()) {
    try {
      return load_(folder);
    } catch (std::exception const&) {  // It is gone, or not on this host.
    }
  }
  return load_(package_);
}

void VersionKeeper::write_note() const {
  if (note_.empty()) return;
  auto const next = note_.string() + ".new";
  std::error_code error;
  {
    std::ofstream file(next);
    file << absolute(package_).string() << '\n' << current_.folder.string() << '\n' << std::flush;
    if (!file) error = std::error_code(errno, std::generic_category());
  }
  if (!error) std::filesystem::rename(next, note_, error);
  if (error) base::log(base::LogLevel::kWarning, "serving", 0, "cannot write " + next + ": " + error.message());
}

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
    write_note();
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
  bool was_readable = true;
  while (!stop.stop_requested() && engine.is_ready()) {
    auto number = current_.number();
    std::error_code error;
    auto const folder = std::filesystem::weakly_canonical(package_, error);
    try {
      number = package_number(package_);
      was_readable = true;
    } catch (PackageError const& reason) {
      if (std::exchange(was_readable, false)) {
        base::log(base::LogLevel::kWarning, "serving", 0, std::string("no new version: ") + reason.what());
        engine.count_refused_version();
      }
    }
    if (number == current_.number() || is_refused(number, folder)) {
      std::this_thread::sleep_for(poll_interval_);
      continue;
    }
    auto failure = prepare(package_, number);
    if (failure.empty()) failure = add_next(engine);
    if (failure.empty()) failure = offer(ranks);
    if (failure.empty() && engine.plans_switches()) failure = plan(engine, ranks, number);
    if (failure.empty()) {
      refused_ = {};
      ranks.tell_all({Kind::kSwitch, number});
      change(engine, ranks);
      continue;
    }
    base::log(base::LogLevel::kWarning, "serving", 0, "a new version is refused: " + failure);
    engine.count_refused_version();
    refuse(number, folder);
    if (next_.model == nullptr) continue;
    ranks.tell_all({Kind::kDrop, number});
    ranks.end_decision();
    engine.remove_model(number);
    next_ = {};
  }
}

bool VersionKeeper::is_refused(std::uint64_t number, std::filesystem::path const& folder) const {
  return number == refused_.number && folder == refused_.folder && std::chrono::steady_clock::now() < refused_.until;
}

void VersionKeeper::refuse(std::uint64_t number, std::filesystem::path const& folder) {
  bool const is_again = number == refused_.number && folder == refused_.folder;
  auto const pause = is_again ? std::min(2 * refused_.pause, kLongestPause) : std::chrono::minutes(1);
  refused_ = {.number = number, .folder = folder, .pause = pause, .until = std::chrono::steady_clock::now() + pause};
}

std::string VersionKeeper::offer(Ranks& ranks) {
  ranks.tell_all({Kind::kLoad, next_.number(), next_.folder.string()});
  try {
    auto failure = ranks.failure_of_others();
    ranks.begin_decision();
    return failure;
  } catch (Stopped const&) {
    ranks.begin_decision();
    ranks.tell_all({Kind::kDrop, next_.number()});
    throw;
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
  ranks.end_decision();
  engine.switch_to(next_.number());
  // It ends on this thread. On that of the engine, requests would wait until its memory and its code are unloaded.
  auto const old_version = std::exchange(current_, std::exchange(next_, {}));
  auto const old = old_version.number();
  log(current_, ranks.group(), "is served");
  if (ranks.leads()) write_note();
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
  ranks.begin_decision();
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
  ranks.end_decision();
  if (next_.model != nullptr) engine.remove_model(wanted.number);
  next_ = {};
}

}  // namespace headway::serving
