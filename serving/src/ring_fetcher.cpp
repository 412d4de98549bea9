// SPDX-License-Identifier: Apache-2.0

// Fetches rows by all-to-alls with bounded lag.
//
// Idea: each batch is two all-to-alls, one of keys and one of rows, in which all ranks take part. A rank without
// requests learns from the group that a peer has begun a batch, and begins an empty one. With max_lag = k a rank may
// begin k batches more than the slowest rank has, so a late rank does not stop the others at once.
//
// Invariants: all ranks begin as many batches, one exchange of keys for each. Embeddings are sent in that order.
//   Callbacks run on a thread of the group. They share `Doorbell` with the fetcher, which may be destroyed first.

#include "departure.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/group_exchanger.hpp"
#include "headway/embedding/sharded_table.hpp"
#include "headway/serving/row_fetcher.hpp"

#include <algorithm>
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
    base::expects(tables_ == nullptr, "a ring has one version");
    std::vector<embedding::MergedTable> merged;
    for (auto& each : tables) {
      // Lookups of LookupMode::kRead change nothing.
      merged.push_back({.options = {.dim = each.rows->dim()},
                        .tables = std::move(each.tables),
                        .reads_unknown_as_zeros = each.reads_unknown_as_zeros,
                        .existing_table = std::const_pointer_cast<embedding::Table>(each.rows)});
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
    version_ = version;
  }

  void remove_version(std::uint64_t /*version*/) override { throw base::UsageError("a ring has one version"); }

  [[nodiscard]] std::unique_ptr<Fetch> begin(std::uint64_t version,
                                             std::span<embedding::Feature const> features) override {
    base::expects(tables_ != nullptr && version == version_, "a ring has one version");
    return std::make_unique<RingFetch>(
        *tables_, tables_->begin(features, {.mode = embedding::LookupMode::kRead, .counts_refused = false}));
  }
  [[nodiscard]] bool must_begin() override {
    return exchanger_ != nullptr && doorbell_->peer_seq() > exchanger_->next_seq();
  }
  bool answer_peers() override { return false; }  // Fetch::poll() does.
  void wake_on_change(std::function<void()> const& wake) override {
    if (doorbell_->set_wake(wake)) wake();
    departure_.wake_on_change(wake);
    if (group_ == nullptr) return;
    if (auto const status = group_->monitor().health(); !status.ok()) throw base::OperationError(status);
  }
  [[nodiscard]] bool leave() override { return departure_.leave(); }

 private:
  class RingFetch final : public Fetch {
   public:
    RingFetch(embedding::ShardedTable& tables, std::unique_ptr<embedding::ShardedTable::Batch> batch)
        : tables_(tables), batch_(std::move(batch)) {}
    [[nodiscard]] bool poll() override { return tables_.poll(*batch_); }
    [[nodiscard]] int missing_rank() const override { return -1; }
    void expand(std::size_t merged, std::span<float> out) override { tables_.expand(*batch_, merged, out); }

   private:
    embedding::ShardedTable& tables_;
    std::unique_ptr<embedding::ShardedTable::Batch> batch_;
  };

  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<base::ThreadPool> thread_pool_;
  std::size_t key_room_;
  std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();
  std::unique_ptr<embedding::ShardedTable> tables_;
  embedding::GroupExchanger const* exchanger_ = nullptr;  ///< Exchanges keys; `tables_` owns it.
  std::uint64_t version_ = 0;
  Departure departure_;
  comm::OperationPtr loss_;
};

}  // namespace

std::unique_ptr<RowFetcher> make_ring_fetcher(std::shared_ptr<comm::Group> group,
                                              std::shared_ptr<base::ThreadPool> thread_pool, std::size_t key_room) {
  return std::make_unique<RingFetcher>(std::move(group), std::move(thread_pool), key_room);
}

}  // namespace headway::serving
