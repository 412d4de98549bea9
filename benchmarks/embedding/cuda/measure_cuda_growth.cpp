// SPDX-License-Identifier: Apache-2.0

// Times single training steps of a CUDA table while it grows. Half of the ids of a step are new.

#include "measure_cuda_growth.hpp"

#include "cuda_points.hpp"
#include "cuda_stopwatch.hpp"
#include "cuda_systems.hpp"
#include "device_array.hpp"
#include "id_batches.hpp"

#include <headway/embedding/cuda_table.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace headway::benchmarks {

namespace {

using embedding::Keys;
using embedding::RowId;

/// Quantile of sorted durations, interpolated between the two nearest ones.
double quantile(std::span<double const> sorted_s, double share) {
  double const position = share * static_cast<double>(sorted_s.size() - 1);
  auto const below = static_cast<std::size_t>(position);
  auto const above = std::min(below + 1, sorted_s.size() - 1);
  return std::lerp(sorted_s[below], sorted_s[above], position - static_cast<double>(below));
}

/// A CUDA table that grows, and timed training steps on it.
class GrowingTable {
 public:
  explicit GrowingTable(CudaTableSettings const& settings)
      : step_(settings.step),
        dim_(settings.dim),
        batches_(2 * settings.step, settings.seed),
        rows_(2 * settings.step),
        embeddings_(2 * settings.step * settings.dim),
        gradients_(2 * settings.step * settings.dim),
        table_(embedding::make_cuda_table(
            {.dim = settings.dim,
             .initializer = initial_embeddings(settings.seed),
             .optimizer = {.kind = kernels::OptimizerKind::kRowWiseAdagrad}},
            {.device = settings.device, .current_stream = [this] { return stopwatch_.stream(); }})) {
    base::check_cuda(cudaMemset(gradients_.data(), 0, 2 * step_ * dim_ * sizeof(float)), "cudaMemset");
  }

  /// Waits for the device.
  [[nodiscard]] std::size_t num_rows() const { return table_->size().rows; }
  /// Inserts the first ids, with training steps that are not timed.
  void insert(std::size_t num_rows) {
    auto const ids = batches_.make_new(num_rows);
    for (std::size_t first = 0; first < num_rows; first += 2 * step_) {
      train(batches_.on_device(std::span(ids).subspan(first, std::min(2 * step_, num_rows - first))));
    }
    batches_.set_known(ids);
  }
  /// Times a step with `num_old` known and `num_new` new ids. The new ids are known afterwards.
  CallDuration time_step(std::size_t num_old, std::size_t num_new) {
    auto const& batch = batches_.next(num_old, num_new);
    auto const duration = stopwatch_.time([&] { train(batch.device_ids); });
    std::vector<std::uint64_t> new_ids;
    for (std::size_t i = 0; i < batch.ids.size(); ++i) {
      if (batch.is_new[i] != 0) new_ids.push_back(batch.ids[i]);
    }
    batches_.add_known(new_ids);
    return duration;
  }

 private:
  /// One training step without a model: insert, gather, and update with zero gradients.
  void train(std::span<std::uint64_t const> ids) {
    Keys const keys{.ids = ids, .are_unique = true};
    auto const rows = rows_.first(ids.size());
    table_->find_or_insert(keys, rows, {});
    table_->gather(keys, rows, embeddings_.first(ids.size() * dim_));
    table_->update(keys, rows, gradients_.first(ids.size() * dim_), {.learning_rate = 0.01});
  }

  std::size_t step_, dim_;
  CudaStopwatch stopwatch_;
  IdBatches batches_;
  DeviceArray<RowId> rows_;
  DeviceArray<float> embeddings_, gradients_;
  std::unique_ptr<embedding::Table> table_;
};

/// Prints the quantiles of the steps, and writes a point with all of them.
void report(CudaTableSettings const& settings, CudaPoints const& points, std::vector<double> const& wall_s) {
  auto sorted_s = wall_s;
  std::ranges::sort(sorted_s);
  double const p50_s = quantile(sorted_s, 0.5), p99_s = quantile(sorted_s, 0.99), max_s = sorted_s.back();
  std::printf(
      "%s: %zu steps of %zu new and %zu old ids, from %zu to %zu rows: p50 %.3f ms, p99 %.3f, max %.3f,"
      " max / p50 %.2f\n",
      points.machine().c_str(), wall_s.size(), settings.step, settings.step, settings.first_rows, settings.last_rows,
      p50_s * 1e3, p99_s * 1e3, max_s * 1e3, max_s / p50_s);
  points.write(JsonObject()
                   .add("name", "embedding_cuda_growth")
                   .add("params", JsonObject()
                                      .add("first_rows", settings.first_rows)
                                      .add("last_rows", settings.last_rows)
                                      .add("new_keys", settings.step)
                                      .add("old_keys", settings.step)
                                      .add("dim", settings.dim))
                   .add("system", "headway")
                   .add("median_s", p50_s)
                   .add("p5_s", quantile(sorted_s, 0.05))
                   .add("p95_s", quantile(sorted_s, 0.95))
                   .add("p99_s", p99_s)
                   .add("longest_s", max_s)
                   .add("longest_over_median", max_s / p50_s)
                   .add("samples", wall_s.size())
                   .add("rate", 2 * static_cast<double>(settings.step) / p50_s / 1e9)
                   .add("unit", "billion keys/s")
                   .add("steps_s", wall_s));
}

}  // namespace

int measure_cuda_growth(CudaTableSettings const& settings) {
  base::check_cuda(cudaSetDevice(settings.device), "cudaSetDevice");
  CudaPoints const points(settings.json, settings.commit, settings.device);
  GrowingTable table(settings);
  table.insert(settings.first_rows);
  for (int i = 0; i < settings.warmups; ++i) static_cast<void>(table.time_step(settings.step, 0));
  std::vector<double> wall_s;
  std::size_t num_rows = settings.first_rows;
  for (; num_rows < settings.last_rows; num_rows += settings.step) {
    wall_s.push_back(table.time_step(settings.step, settings.step).wall_s);
  }
  if (table.num_rows() != num_rows) throw std::runtime_error("the table has not the rows that it was given");
  if (!wall_s.empty()) report(settings, points, wall_s);
  return 0;
}

}  // namespace headway::benchmarks
