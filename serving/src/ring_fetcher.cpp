// SPDX-License-Identifier: Apache-2.0

// Fetches rows by all-to-alls with bounded lag.
//
// Idea: each batch is two all-to-alls, one of keys and one of rows, in which all ranks take part. A rank without
// requests learns from the group that a peer has begun a batch, and begins an empty one. With max_lag = k a rank may
// begin k batches more than the slowest rank has, so a late rank does not stop the others at once.
//
// Another version: all ranks count their batches, and agree on the first one that reads it. Rank 0 chooses it. Its own
// next batch is n, and a rank has at most m batches in flight, each of which needs rank 0. So while rank 0 begins no
// batch from n + m on, no rank begins one from n + 2m on: that is the first of the new version. Rank 0 goes on once all
// ranks know it, and usually has not come to n + m by then. Ranks without requests run empty batches up to it. Example:
// m = 3, n = 10. Rank 0 begins batches up to 12 while it asks; others get to 15 at most; 16 is the first.
//
// Invariants: all ranks begin as many batches, one exchange of keys for each. Embeddings are sent in that order.
//   Tables are replaced when all earlier batches have their rows, and before a later one reads its own.
//   Callbacks run on a thread of the group. They share `Doorbell` with the fetcher, which may be destroyed first.

#include "departure.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/group_exchanger.hpp"
#include "headway/embedding/sharded_table.hpp"
#include "headway/serving/row_fetcher.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

namespace headway::serving {

namespace {

constexpr int kKeyChannel = 0, kRowChannel = 1;
constexpr std::uint64_t kLossMatch = std::uint64_t{1} << 61;  // Nobody sends a message with it.

/// Passes news of the group on.
class Doorbell {
 public:
  /// Memory of a message that nobody sends.
  std::byte unused{};

  void ring() {
    std::lock_guard const lock(mutex_);
    if (wake_) wake_();
  }
  void peer_ahead(std::uint64_t seq) {
    {
      std::lock_guard const lock(mutex_);
      peer_seq_ = std::max(peer_seq_, seq + 1);
    }
    ring();
  }
  /// One more than the newest all-to-all of keys that a peer has begun, as far as this rank has not.
  [[nodiscard]] std::uint64_t peer_seq() {
    std::lock_guard const lock(mutex_);
    return peer_seq_;
  }
  /// @returns whether nobody was woken before, so that news may have come unheard
  bool set_wake(std::function<void()> wake) {
    std::lock_guard const lock(mutex_);
    bool const is_first = !wake_;
    wake_ = std::move(wake);
    return is_first;
  }

 private:
  std::mutex mutex_;
  std::function<void()> wake_;
  std::uint64_t peer_seq_ = 0;
};

class RingFetcher final : public RowFetcher {
 public:
  RingFetcher(std::shared_ptr<comm::Group> group, std::shared_ptr<base::ThreadPool> thread_pool, std::size_t key_room)
      : group_(std::move(group)), thread_pool_(std::move(thread_pool)), key_room_(key_room), departure_(group_) {
    if (group_ == nullptr) return;
    base::expects(group_->options().num_channels >= 2, "a ring needs a group with two channels");
    group_->monitor().on_peer_ahead(kKeyChannel,
                                    [doorbell = doorbell_](std::uint64_t seq) { doorbell->peer_ahead(seq); });
    // It ends when the group fails. Otherwise a rank that sleeps would not notice.
    loss_ = group_->receive_any({&doorbell_->unused, 1}, kLossMatch, 0);
    group_->on_done(*loss_, [doorbell = doorbell_, loss = loss_] { doorbell->ring(); });
  }
  RingFetcher(RingFetcher const&) = delete;
  RingFetcher& operator=(RingFetcher const&) = delete;
  ~RingFetcher() override { doorbell_->set_wake({}); }

  [[nodiscard]] int rank() const override { return group_ == nullptr ? 0 : group_->rank(); }
  [[nodiscard]] int size() const override { return group_ == nullptr ? 1 : group_->size(); }

  void add_version(std::uint64_t version, std::vector<embedding::ReadTable> tables) override {
    base::expects(!versions_.contains(version), "the version is there");
    if (tables_ == nullptr) {
      make_tables(tables);
      version_ = tables_version_ = version;
    } else {
      auto const& present = versions_.at(version_);
      base::expects(std::ranges::equal(tables, present, {}, &embedding::ReadTable::reads_unknown_as_zeros,
                                       &embedding::ReadTable::reads_unknown_as_zeros),
                    "the version treats ids without a row otherwise: with a ring it needs a restart");
    }
    versions_.emplace(version, std::move(tables));
  }

  void remove_version(std::uint64_t version) override {
    base::expects(version != version_ && version != tables_version_, "the version is in use");
    versions_.erase(version);
  }

  [[nodiscard]] bool plans_switches() const override { return true; }
  [[nodiscard]] std::uint64_t hold_for_switch(std::size_t max_in_flight) override {
    hold_ = num_begun_ + max_in_flight;
    return hold_ + max_in_flight;
  }
  [[nodiscard]] bool plan_switch(std::uint64_t version, std::uint64_t first) override {
    hold_ = kNever;
    if (num_begun_ > first || !versions_.contains(version)) return false;
    planned_ = version;
    first_planned_ = first;
    return true;
  }
  void cancel_switch() override { hold_ = first_planned_ = kNever; }
  [[nodiscard]] bool may_begin() const override { return num_begun_ < hold_; }
  [[nodiscard]] std::uint64_t version_of_next(std::uint64_t /*wanted*/) override {
    if (num_begun_ >= first_planned_) {
      version_ = planned_;
      first_planned_ = kNever;
    }
    return version_;
  }
  [[nodiscard]] bool has_left(std::uint64_t version) const override {
    return version_ != version && tables_version_ != version;
  }

  [[nodiscard]] std::unique_ptr<Fetch> begin(std::uint64_t version,
                                             std::span<embedding::Feature const> features) override {
    base::expects(tables_ != nullptr && version == version_, "the ranks read another version in this batch");
    auto batch = tables_->begin(features, {.mode = embedding::LookupMode::kRead, .counts_refused = false});
    ++num_begun_;
    return std::make_unique<RingFetch>(*this, std::move(batch));
  }
  [[nodiscard]] bool must_begin() override {
    if (first_planned_ != kNever && num_begun_ <= first_planned_ && may_begin()) return true;
    return exchanger_ != nullptr && may_begin() && doorbell_->peer_seq() > exchanger_->next_seq();
  }
  bool answer_peers() override { return false; }  // Fetch::poll() does.
  void wake_on_change(std::function<void()> const& wake) override {
    if (doorbell_->set_wake(wake)) wake();
    departure_.wake_on_change(wake);
    if (group_ == nullptr) return;
    if (auto const status = group_->monitor().health(); !status.ok()) throw base::OperationError(status);
  }
  [[nodiscard]] bool leave() override { return departure_.leave(); }
  void abort(std::string const& reason) override { departure_.abort(reason); }

 private:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  class RingFetch final : public Fetch {
   public:
    RingFetch(RingFetcher& fetcher, std::unique_ptr<embedding::ShardedTable::Batch> batch)
        : fetcher_(fetcher), version_(fetcher.version_), batch_(std::move(batch)) {
      fetcher_.unfinished_.push_back(this);
    }
    RingFetch(RingFetch const&) = delete;
    RingFetch& operator=(RingFetch const&) = delete;
    ~RingFetch() override { end(); }
    [[nodiscard]] bool poll() override {
      if (version_ != fetcher_.tables_version_) {
        if (fetcher_.unfinished_.front() != this) return false;  // Earlier batches read the old tables.
        fetcher_.replace_tables(version_);
      }
      if (!fetcher_.tables_->poll(*batch_)) return false;
      end();
      return true;
    }
    [[nodiscard]] int missing_rank() const override { return -1; }
    void expand(std::size_t merged, std::span<float> out) override { fetcher_.tables_->expand(*batch_, merged, out); }

   private:
    void end() { std::erase(fetcher_.unfinished_, this); }

    RingFetcher& fetcher_;
    std::uint64_t version_;
    std::unique_ptr<embedding::ShardedTable::Batch> batch_;
  };

  // Lookups of LookupMode::kRead change no table.
  static std::shared_ptr<embedding::Table> writable(embedding::ReadTable const& table) {
    return std::const_pointer_cast<embedding::Table>(table.rows);
  }

  void replace_tables(std::uint64_t version) {
    auto const& tables = versions_.at(version);
    for (std::size_t merged = 0; merged < tables.size(); ++merged) {
      tables_->replace_table(merged, writable(tables[merged]));
    }
    tables_version_ = version;
  }

  void make_tables(std::span<embedding::ReadTable const> tables) {
    std::vector<embedding::MergedTable> merged;
    for (auto const& each : tables) {
      auto& added = merged.emplace_back();
      added.options.dim = each.rows->dim();
      added.tables = each.tables;
      added.reads_unknown_as_zeros = each.reads_unknown_as_zeros;
      added.existing_table = writable(each);
    }
    embedding::ShardedTableOptions options{.thread_pool = thread_pool_, .key_room = key_room_};
    std::unique_ptr<embedding::Exchanger> keys = embedding::make_local_exchanger();
    if (group_ != nullptr) {
      auto exchanger = std::make_unique<embedding::GroupExchanger>(*group_, kKeyChannel, std::function<void()>(),
                                                                   [doorbell = doorbell_] { doorbell->ring(); });
      exchanger_ = exchanger.get();
      keys = std::move(exchanger);
      options.row_exchanger = std::make_shared<embedding::GroupExchanger>(*group_, kRowChannel, std::function<void()>(),
                                                                          [doorbell = doorbell_] { doorbell->ring(); });
    }
    tables_ = std::make_unique<embedding::ShardedTable>(merged, std::move(keys), std::move(options));
  }

  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<base::ThreadPool> thread_pool_;
  std::size_t key_room_;
  std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();
  std::unique_ptr<embedding::ShardedTable> tables_;
  embedding::GroupExchanger const* exchanger_ = nullptr;  ///< Exchanges keys; `tables_` owns it.
  std::map<std::uint64_t, std::vector<embedding::ReadTable>> versions_;
  std::uint64_t num_begun_ = 0;                         ///< Batches.
  std::uint64_t version_ = 0;                           ///< The next batch reads it.
  std::uint64_t tables_version_ = 0;                    ///< `tables_` has it.
  std::uint64_t planned_ = 0, first_planned_ = kNever;  ///< The version of later batches, from this number on.
  std::uint64_t hold_ = kNever;                         ///< Batches from this number on do not begin yet.
  std::vector<RingFetch*> unfinished_;                  ///< In the order of their batches.
  Departure departure_;
  comm::OperationPtr loss_;
};

}  // namespace

std::unique_ptr<RowFetcher> make_ring_fetcher(std::shared_ptr<comm::Group> group,
                                              std::shared_ptr<base::ThreadPool> thread_pool, std::size_t key_room) {
  return std::make_unique<RingFetcher>(std::move(group), std::move(thread_pool), key_room);
}

}  // namespace headway::serving
