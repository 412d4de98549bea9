// SPDX-License-Identifier: Apache-2.0
#include "departure.hpp"
#include "headway/serving/row_fetcher.hpp"

#include <utility>

namespace headway::serving {

namespace {

using embedding::PairwiseLookup;

class PairwiseFetcher final : public RowFetcher {
 public:
  PairwiseFetcher(std::shared_ptr<comm::Group> group, std::shared_ptr<base::ThreadPool> thread_pool)
      : group_(std::move(group)), lookup_(group_.get(), std::move(thread_pool)), departure_(group_) {}

  [[nodiscard]] int rank() const override { return group_ == nullptr ? 0 : group_->rank(); }
  [[nodiscard]] int size() const override { return group_ == nullptr ? 1 : group_->size(); }
  void add_version(std::uint64_t version, std::vector<embedding::ReadTable> tables) override {
    lookup_.add_version(version, std::move(tables));
  }
  void remove_version(std::uint64_t version) override { lookup_.remove_version(version); }
  [[nodiscard]] std::unique_ptr<Fetch> begin(std::uint64_t version,
                                             std::span<embedding::Feature const> features) override {
    return std::make_unique<PairwiseFetch>(*this, lookup_.begin(version, features));
  }
  bool answer_peers() override { return lookup_.answer() > 0; }
  void wake_on_change(std::function<void()> const& wake) override {
    lookup_.wake_on_arrival(unfinished_, wake);
    departure_.wake_on_change(wake);
  }
  [[nodiscard]] bool leave() override { return departure_.leave(); }
  void abort(std::string const& reason) override { departure_.abort(reason); }

 private:
  class PairwiseFetch final : public Fetch {
   public:
    PairwiseFetch(PairwiseFetcher& fetcher, PairwiseLookup::BatchPtr batch)
        : fetcher_(fetcher), batch_(std::move(batch)) {
      fetcher_.unfinished_.push_back(batch_.get());
    }
    PairwiseFetch(PairwiseFetch const&) = delete;
    PairwiseFetch& operator=(PairwiseFetch const&) = delete;
    ~PairwiseFetch() override { leave(); }
    [[nodiscard]] bool poll() override {
      if (!fetcher_.lookup_.poll(*batch_)) return false;
      leave();
      return true;
    }
    [[nodiscard]] int missing_rank() const override { return fetcher_.lookup_.missing_rank(*batch_); }
    [[nodiscard]] std::vector<Arrival> arrivals() const override {
      std::vector<Arrival> arrivals;
      for (auto const& [rank, time] : fetcher_.lookup_.arrivals(*batch_)) arrivals.push_back({rank, time});
      return arrivals;
    }
    void expand(std::size_t merged, std::span<float> out) override { fetcher_.lookup_.expand(*batch_, merged, out); }

   private:
    void leave() { std::erase(fetcher_.unfinished_, batch_.get()); }

    PairwiseFetcher& fetcher_;
    PairwiseLookup::BatchPtr batch_;
  };

  std::shared_ptr<comm::Group> group_;
  PairwiseLookup lookup_;
  std::vector<PairwiseLookup::Batch*> unfinished_;
  Departure departure_;
};

}  // namespace

std::unique_ptr<RowFetcher> make_pairwise_fetcher(std::shared_ptr<comm::Group> group,
                                                  std::shared_ptr<base::ThreadPool> thread_pool) {
  return std::make_unique<PairwiseFetcher>(std::move(group), std::move(thread_pool));
}

}  // namespace headway::serving
