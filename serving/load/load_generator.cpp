// SPDX-License-Identifier: Apache-2.0

// An open loop draws the time of each request beforehand, from a seed. One thread sends them, and latency counts from
// the moment a request was due. So a server that stalls cannot hide it: in a loop that waits for replies, requests of
// the stall would not have been sent.
//
// Example: at 1,000 requests a second the server stalls for 50 ms. Some 50 requests are due meanwhile, and have
// latencies of 50 ms down to 0. A single client that waits would have seen one slow request.

#include "load_generator.hpp"

#include "headway/base/crc32.hpp"
#include "headway/base/status.hpp"
#include "open_inference.grpc.pb.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <utility>

namespace headway::serving {

namespace {

using Clock = std::chrono::steady_clock;
using inference::GRPCInferenceService;

char const* name_of(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::INTERNAL:
      return "INTERNAL";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::CANCELLED:
      return "CANCELLED";
    default:
      return "OTHER";
  }
}

class Generator {
 public:
  Generator(std::vector<inference::ModelInferRequest> const& requests, LoadOptions const& options)
      : requests_(requests), options_(options) {
    base::expects(!requests.empty() && !options.addresses.empty(), "load needs requests and addresses");
    for (auto const& address : options.addresses) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A connection for each address, also if they repeat.
      arguments.SetMaxReceiveMessageSize(-1);
      stubs_.push_back(GRPCInferenceService::NewStub(
          grpc::CreateCustomChannel(address, client_credentials(options.tls), arguments)));
    }
  }

  LoadResult run() {
    is_closed_ = options_.times.empty() && options_.requests_per_s <= 0;
    result_.offered_per_s = options_.requests_per_s;
    begin_ = Clock::now() + options_.warmup;
    end_ = begin_ + options_.duration;
    if (!options_.times.empty()) {
      replay();
    } else if (!is_closed_) {
      run_open();
    } else {
      for (std::size_t i = 0; i < options_.num_clients; ++i) send(Clock::now());
    }
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return num_pending_ == 0; });
    auto const end = must_stop() ? std::max(last_end_, begin_) : std::max(last_end_, end_);
    result_.seconds = std::chrono::duration<double>(end - begin_).count();
    // Connections are never closed: gRPC 1.51 frees the queue of its callbacks twice if a channel is destroyed while
    // one of its threads still polls (seen as a damaged heap in 1 of 20 runs).
    static_cast<void>(new Stubs(std::move(stubs_)));
    return result_;
  }

 private:
  using Stubs = std::vector<std::unique_ptr<GRPCInferenceService::Stub>>;

  /// A request that was sent. It counts as pending until gRPC has dropped its callback.
  struct Call {
    explicit Call(Generator& of_generator) : generator(of_generator) {}
    Call(Call const&) = delete;
    Call& operator=(Call const&) = delete;
    ~Call() {
      std::lock_guard const lock(generator.mutex_);
      if (--generator.num_pending_ == 0) generator.ended_.notify_all();
    }

    Generator& generator;
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    Clock::time_point due{};
    std::size_t request = 0;  ///< Index.
  };

  void run_open() {
    std::mt19937_64 random(options_.seed);
    std::exponential_distribution<double> gap(options_.requests_per_s);
    auto due = Clock::now();
    while (true) {
      due += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random)));
      if (due >= end_ || must_stop()) return;
      std::this_thread::sleep_until(due);
      send(due);
    }
  }

  [[nodiscard]] bool must_stop() const { return options_.must_stop && options_.must_stop(); }

  void replay() {
    auto const last = std::max(options_.times.back(), std::chrono::nanoseconds(1));
    result_.offered_per_s = static_cast<double>(options_.times.size()) / std::chrono::duration<double>(last).count();
    begin_ = Clock::now();
    end_ = begin_ + last + std::chrono::nanoseconds(1);
    for (auto const time : options_.times) {
      if (must_stop()) return;
      std::this_thread::sleep_until(begin_ + time);
      send(begin_ + time);
    }
  }

  void send(Clock::time_point due) {
    auto const now = Clock::now();
    std::size_t index;
    {
      std::lock_guard const lock(mutex_);
      index = num_sent_++;
      ++num_pending_;
      if (due >= begin_) result_.sent_late.add(now - due);
    }
    auto const call = std::make_shared<Call>(*this);
    call->due = due;
    call->request = index % requests_.size();
    call->context.set_deadline(std::chrono::system_clock::now() + options_.timeout - (now - due));
    stubs_[index % stubs_.size()]->async()->ModelInfer(
        &call->context, &requests_[call->request], &call->response,
        [this, call](grpc::Status const& status) { end(*call, status); });
  }

  void end(Call const& call, grpc::Status const& status) {
    auto const now = Clock::now();
    if (call.due >= begin_ && call.due < end_) count(call, status, now);
    if (options_.keeps_replies && status.ok()) keep(call);
    // The next request is sent before this one counts as ended, so that run() does not return between them.
    if (is_closed_ && now < end_ && !must_stop()) send(now);
  }

  void count(Call const& call, grpc::Status const& status, Clock::time_point now) {
    std::lock_guard const lock(mutex_);
    last_end_ = std::max(last_end_, now);
    (status.ok() ? result_.answered : result_.refused).add(now - call.due);
    ++result_.statuses[name_of(status.error_code())];
    if (!status.ok()) {
      if (result_.errors.size() < 20 || result_.errors.contains(status.error_message())) {
        ++result_.errors[status.error_message()];
      }
      return;
    }
    ++result_.versions[call.response.model_version()];
    if (call.response.outputs_size() > 0 && call.response.outputs(0).shape_size() > 0) {
      result_.answered_rows += static_cast<std::uint64_t>(call.response.outputs(0).shape(0));
    }
  }

  void keep(Call const& call) {
    ReplyKey key{.request = call.request, .version = call.response.model_version()};
    for (auto const& contents : call.response.raw_output_contents()) {
      key.crc32 = base::crc32(std::as_bytes(std::span(contents)), key.crc32);
    }
    std::lock_guard const lock(mutex_);
    ++result_.replies[key];
  }

  std::vector<inference::ModelInferRequest> const& requests_;
  LoadOptions const& options_;
  Stubs stubs_;
  Clock::time_point begin_, end_, last_end_{};
  bool is_closed_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t num_sent_ = 0, num_pending_ = 0;
  LoadResult result_;
};

}  // namespace

LoadResult generate_load(std::vector<inference::ModelInferRequest> const& requests, LoadOptions const& options) {
  return Generator(requests, options).run();
}

}  // namespace headway::serving
