#include "call_loop.hpp"
#include "measurements.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

constexpr std::size_t kTurns = 40;

struct Contender {
  int lag;
  std::unique_ptr<Exchange> exchange;
  std::vector<CallBuffers> sets;
  std::vector<double> turns_s;  ///< Mean time of a call in each turn.
};

double mean(std::vector<double> const& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void print_contender(RankContext const& context, Contender const& contender, std::size_t bytes_per_rank) {
  JsonObject point;
  point.add("name", "lag_cost").add("params", context.params(bytes_per_rank, contender.lag));
  point.add("system", context.system);
  add_summary(point, summarize(contender.turns_s), bytes_per_rank);
  point.add("turns_s", contender.turns_s);
  print_point(point);
}

void measure_size(RankContext const& context, std::vector<Contender>& contenders, std::size_t bytes_per_rank) {
  std::size_t const calls = context.settings.repetitions != 0
                                ? context.settings.repetitions
                                : std::max<std::size_t>(default_repetitions(bytes_per_rank) / 10, 5);
  for (auto& contender : contenders) {
    contender.turns_s.clear();
    contender.sets = context.make_buffers(bytes_per_rank, contender.lag);
    contender.exchange->use(contender.sets);
    exchange_and_check(*contender.exchange, contender.sets, 0);
    (void)time_calls(*contender.exchange, contender.lag, warm_up_calls(calls));
  }
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    // The order turns too, so that none always follows the same other.
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      auto& contender = contenders[(turn + i) % contenders.size()];
      context.meeting.meet();
      (void)time_calls(*contender.exchange, contender.lag, 2);
      contender.turns_s.push_back(mean(time_calls(*contender.exchange, contender.lag, calls)));
    }
  }
  for (auto& contender : contenders) {
    exchange_and_check(*contender.exchange, contender.sets, 1);
    if (context.is_root()) print_contender(context, contender, bytes_per_rank);
  }
}

}  // namespace

void measure_lag_cost(RankContext const& context) {
  std::vector<Contender> contenders;
  for (int const lag : context.settings.lags) {
    contenders.push_back({.lag = lag,
                          .exchange = context.connect(context, lag, "lag" + std::to_string(lag)),
                          .sets = {},
                          .turns_s = {}});
  }
  for (std::size_t const bytes : context.settings.sizes) measure_size(context, contenders, bytes);
  context.meeting.meet();
}

}  // namespace headway::benchmarks
