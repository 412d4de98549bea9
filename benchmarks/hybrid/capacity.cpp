// SPDX-License-Identifier: Apache-2.0

// Measures a full table of a parameter server: steps over id spaces of different sizes, while it evicts.
//
// A step looks up distinct random ids, which inserts the absent ones, and trains them. It begins with an eviction of
// the least recently used rows beyond 95% of `--rows`. Ids are uniform in the space, so nearly all are new in a large
// one; or they follow Zipf's law, where the table finds some. Each space has a table of its own, which is full before
// it is timed. The spaces take turns. With one thread, times are processor
// time, so other work on the machine does not count.

#include "json_object.hpp"
#include "options.hpp"
#include "rank_program.hpp"
#include "sample_summary.hpp"

#include <headway/embedding/concurrent_table.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

struct Settings : RankSettings {
  std::uint64_t rows = 4'000'000;
  std::size_t dim = 64, keys = 4096;
  int steps = 2000, threads = 1;
};

std::string usage(std::string const& program) {
  return "Measures steps of a full table that evicts, and prints a JSON line for each id space.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --rows N        most rows of the table (4000000)\n"
         "  --dim D         floats of a row, with row-wise Adagrad (64)\n"
         "  --keys K        distinct keys of a step (4096)\n"
         "  --steps N       timed steps of each space (2000)\n"
         "  --threads N     of the table (1)\n"
         "  --time-limit S  end after this time (300)\n";
}

/// Seconds of processor time of this thread, or of time if there are several threads.
double seconds_now(int threads) {
  timespec now{};
  ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Resident memory of this process in bytes.
std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// Ids of a space of `size` ids, uniform or by Zipf's law with this exponent (0: uniform). Scattered over 64 bits.
class Ids {
 public:
  Ids(double size, double exponent, std::uint64_t seed) : size_(size), exponent_(exponent), random_(seed) {}

  void draw(std::vector<std::uint64_t>& ids) {
    std::size_t const count = ids.size();
    ids.clear();
    std::set<std::uint64_t> distinct;
    while (ids.size() < count) {
      auto const id = one() * 0x9e3779b97f4a7c15ULL;
      if (distinct.insert(id).second) ids.push_back(id);
    }
  }

 private:
  std::uint64_t one() {
    double const place = std::uniform_real_distribution<double>(0, 1)(random_);
    if (exponent_ == 0) return static_cast<std::uint64_t>(place * size_);
    // Inverse of the continuous law with density x^-exponent on [1, size].
    double const power = 1 - exponent_;
    return static_cast<std::uint64_t>(std::pow(1 + place * (std::pow(size_, power) - 1), 1 / power));
  }

  double size_, exponent_;
  std::mt19937_64 random_;
};

/// A full table and its ids.
class Space {
 public:
  Space(Settings const& settings, double size, double exponent)
      : size_(size),
        exponent_(exponent),
        threads_(settings.threads),
        ids_(size, exponent, 1),
        batch_(settings.keys),
        values_(settings.keys * settings.dim, 0.01F) {
    embedding::TableOptions options;
    options.dim = settings.dim;
    options.initializer = embedding::Initializer::uniform(-0.01F, 0.01F, 1);
    options.optimizer.kind = kernels::OptimizerKind::kRowWiseAdagrad;
    options.max_rows = settings.rows;
    options.eviction = embedding::EvictionPolicy::kLeastRecentlyUsed;
    options.high_water = settings.rows / 20 * 19;
    options.low_water = settings.rows / 20 * 17;
    options.eviction_batch = std::max<std::size_t>(2 * settings.keys, 128);
    options.thread_pool = std::make_shared<base::ThreadPool>(settings.threads);
    auto const before = resident_bytes();
    table_ = embedding::make_concurrent_table(options);
    // New ids alone fill it in any space. The ids of the space then replace them.
    for (std::uint64_t first = 0; first < options.high_water; first += settings.keys) {
      for (std::size_t i = 0; i < settings.keys; ++i) batch_[i] = (first + i) * 0xd1342543de82ef95ULL + 1;
      begin_step();
      table_->read_or_insert({.ids = batch_}, values_);
    }
    for (std::uint64_t done = 0; done < options.high_water; done += settings.keys) run_step();
    std::ranges::fill(values_, 0.01F);
    resident_bytes_ = resident_bytes() - before;
    counted_ = table_->statistics();
    times_.clear();
  }

  void run_step() {
    ids_.draw(batch_);
    double const begin = seconds_now(threads_);
    begin_step();
    table_->read_or_insert({.ids = batch_}, values_);
    table_->update_keys({.ids = batch_}, values_, {.learning_rate = 0.01, .number = step_});
    times_.push_back(seconds_now(threads_) - begin);
  }

  void print(Settings const& settings) {
    auto const summary = summarize(times_);
    auto sorted = times_;
    std::ranges::sort(sorted);
    auto const counts = table_->statistics();
    double const num_steps = static_cast<double>(times_.size());
    JsonObject point, params;
    params.add("rows", settings.rows).add("dim", settings.dim).add("keys", settings.keys);
    params.add("threads", settings.threads).add("ids", size_).add("exponent", exponent_);
    point.add("name", "table_capacity").add("params", params).add("system", "headway");
    point.add("median_s", summary.median_s).add("p5_s", summary.p5_s).add("p95_s", summary.p95_s);
    point.add("p99.9_s", sorted[static_cast<std::size_t>(0.999 * (num_steps - 1))]);
    point.add("samples", summary.samples).add("rate", static_cast<double>(settings.keys) / summary.median_s);
    point.add("unit", "rows/s");
    point.add("new_per_step", static_cast<double>(counts.inserted - counted_.inserted) / num_steps);
    point.add("evicted_per_step", static_cast<double>(counts.evicted - counted_.evicted) / num_steps);
    point.add("present_rows", table_->size().rows);
    point.add("resident_bytes_per_row",
              static_cast<double>(resident_bytes_) / static_cast<double>(table_->size().rows));
    print_point(point);
  }

 private:
  void begin_step() {
    ++step_;
    table_->begin_step(step_, step_);
  }

  double size_, exponent_;
  int threads_;
  Ids ids_;
  std::vector<std::uint64_t> batch_;
  std::vector<float> values_;
  std::unique_ptr<embedding::ConcurrentTable> table_;
  std::uint32_t step_ = 0;
  std::size_t resident_bytes_ = 0;
  embedding::TableStatistics counted_;
  std::vector<double> times_;
};

int run(Arguments arguments) {
  Settings settings;
  parse_options(arguments, {{"--rows", number(settings.rows, std::uint64_t{100'000}, std::uint64_t{1} << 30)},
                            {"--dim", number(settings.dim, std::size_t{1}, std::size_t{4096})},
                            {"--keys", number(settings.keys, std::size_t{1}, std::size_t{1} << 16)},
                            {"--steps", number(settings.steps, 10, 1'000'000)},
                            {"--threads", number(settings.threads, 1, 256)},
                            {"--time-limit", number(settings.time_limit, 1, 86'400)}});
  if (settings.keys * 100 > settings.rows) throw SettingsError("--keys: at most a hundredth of --rows");
  std::vector<std::unique_ptr<Space>> spaces;
  for (double const exponent : {0.0, 1.2}) {
    for (double const size : {1e9, 1e11, 1e14}) spaces.push_back(std::make_unique<Space>(settings, size, exponent));
  }
  for (int step = 0; step < settings.steps; ++step) {
    for (auto const& space : spaces) space->run_step();
  }
  for (auto const& space : spaces) space->print(settings);
  return 0;
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  return headway::benchmarks::run_main(argc, argv, headway::benchmarks::usage, headway::benchmarks::run);
}
