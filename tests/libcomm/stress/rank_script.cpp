// SPDX-License-Identifier: Apache-2.0

// The actions of one rank in a random history: start an exchange, test or wait for one, send a message, poll, pause.
//
// All choices come from the rank's random numbers, so a failing history can be repeated by its seed. What ranks must
// agree on, the sizes and the number of exchanges per channel, is in the plan instead.

#include "rank_script.hpp"

#include "history_failure.hpp"

#include <algorithm>

namespace headway::comm::stress {

RankScript::RankScript(Group& group, HistoryPlan const& plan)
    : group_(group),
      plan_(plan),
      random_(hash_of(plan.seed, 7, group.rank())),
      eagerness_(1 + random_.below(13)),
      num_started_(static_cast<std::size_t>(plan.group->num_channels)),
      outstanding_(static_cast<std::size_t>(plan.group->num_channels)),
      messages_(group, plan) {}

void RankScript::step() {
  if (awaited_ != nullptr) {
    test(awaited_);
    // The rank gives up waiting at times. Otherwise a rank that waits for ever on one channel, while another one waits
    // on the next channel, would be a deadlock of the test and not of the library.
    if (patience_-- == 0) awaited_ = nullptr;
    return;
  }
  std::uint64_t const draw = random_.below(16);
  if (draw < eagerness_) {
    bool const first_exchange = random_.one_in(2);
    if (first_exchange && start_exchange()) return;
    if (messages_.start_one(random_) || start_exchange()) return;
  }
  if (draw == 15) {
    group_.admin().set_max_lag(static_cast<int>(random_.below(static_cast<std::uint64_t>(plan_.group->lag) + 1)));
    return collect();
  }
  await_something();
}

bool RankScript::start_exchange() {
  auto const num_channels = static_cast<std::uint64_t>(plan_.group->num_channels);
  std::uint64_t const first = random_.below(num_channels);
  for (std::uint64_t i = 0; i < num_channels; ++i) {
    auto const channel = static_cast<std::size_t>((first + i) % num_channels);
    if (num_started_[channel] == plan_.num_exchanges(static_cast<int>(channel))) continue;
    outstanding_[channel].push_back(
        std::make_unique<Exchange>(group_, plan_, static_cast<int>(channel), num_started_[channel]++));
    collect();
    return true;
  }
  return false;
}

void RankScript::await_something() {
  auto const& exchanges = outstanding_[random_.below(outstanding_.size())];
  Operation* const message = messages_.some_pending(random_);
  if (!exchanges.empty() && (message == nullptr || !random_.one_in(3))) {
    awaited_ = &exchanges[random_.below(exchanges.size())]->operation();
  } else {
    awaited_ = message;
  }
  if (awaited_ == nullptr) return nudge();
  patience_ = random_.one_in(2) ? 0 : random_.below(50);
  test(awaited_);
}

void RankScript::test(Operation* operation) {
  if (group_.test(*operation)) awaited_ = nullptr;
  collect();
}

/// Releases completed exchanges in order. Within a channel no exchange may be done before an earlier one.
void RankScript::collect() {
  for (auto& exchanges : outstanding_) {
    auto const is_pending = [](auto const& exchange) { return !exchange->done(); };
    auto const oldest_pending = std::find_if(exchanges.begin(), exchanges.end(), is_pending);
    auto const done_early = std::find_if_not(oldest_pending, exchanges.end(), is_pending);
    if (done_early != exchanges.end()) {
      throw HistoryFailure((*done_early)->name() + ": done before an older exchange of its channel");
    }
    for (auto at = exchanges.begin(); at != oldest_pending; ++at) {
      if (awaited_ == &(*at)->operation()) awaited_ = nullptr;
      (*at)->verify();
    }
    exchanges.erase(exchanges.begin(), oldest_pending);
  }
  if (awaited_ != nullptr && awaited_->done()) awaited_ = nullptr;
  messages_.collect();
}

/// Makes progress without an operation to test: set_max_lag() advances all channels. Other ranks may need it.
void RankScript::nudge() {
  group_.admin().set_max_lag(static_cast<int>(random_.below(static_cast<std::uint64_t>(plan_.group->lag) + 1)));
  collect();
}

bool RankScript::finished() const {
  for (std::size_t channel = 0; channel < outstanding_.size(); ++channel) {
    if (num_started_[channel] != plan_.num_exchanges(static_cast<int>(channel))) return false;
    if (!outstanding_[channel].empty()) return false;
  }
  return messages_.finished();
}

std::string RankScript::describe() const {
  for (auto const& exchanges : outstanding_) {
    if (!exchanges.empty()) return exchanges.front()->name() + " is not done";
  }
  return "rank " + std::to_string(group_.rank()) + (messages_.finished() ? " is done" : " lacks messages");
}

}  // namespace headway::comm::stress
