// SPDX-License-Identifier: Apache-2.0

// Tests the backend without Python: ranks are threads of one process, and each rank has several threads. Meant for
// builds under the sanitizers.

#include "backend/headway_backend.hpp"
#include "runtime/exit_hooks.hpp"
#include "sum_backend.hpp"
#include "torch_headers.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace headway::c10d_backend {
namespace {

using std::chrono::milliseconds;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<HeadwayBackend>;

constexpr int kSize = 2;
constexpr int kRounds = 60;

/// Two ranks per test, by transport. Reductions go to a SumBackend.
class BackendThreadsTest : public testing::TestWithParam<comm::Transport> {
 protected:
  /// Runs `body` in one thread per rank, each with its own backend.
  void run_ranks(std::function<void(BackendPtr)> const& body) {
    auto const store = c10::make_intrusive<c10d::HashStore>();
    auto const hub = std::make_shared<SumHub>(kSize);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(make_backend(store, hub, rank));
        } catch (std::exception const& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
  }

  BackendPtr make_backend(c10::intrusive_ptr<c10d::Store> const& store, std::shared_ptr<SumHub> const& hub, int rank) {
    comm::GroupOptions settings;
    settings.transport = GetParam();
    settings.timeout = std::chrono::seconds(60);
    settings.slot_bytes = 4096;
    auto options = c10::make_intrusive<HeadwayOptions>(settings);
    options->group_name = "threads";
    return c10::make_intrusive<HeadwayBackend>(
        store, rank, kSize, std::move(options),
        [this, hub](auto const&, int own_rank, int size, milliseconds, std::string const& /*device*/,
                    std::string const& /*address*/) {
          may_make_.wait(false);
          return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<SumBackend>(hub, own_rank, size));
        });
  }

  static WorkPtr exchange(HeadwayBackend& backend, at::Tensor& output) {
    auto input = at::full({kSize}, static_cast<float>(backend.getRank()));
    std::vector<std::int64_t> none;
    return backend.alltoall_base(output, input, none, none, {});
  }

  static WorkPtr reduce(HeadwayBackend& backend, at::Tensor const& tensor) {
    std::vector<at::Tensor> tensors{tensor};
    return backend.allreduce(tensors, {});
  }

  static WorkPtr receive(HeadwayBackend& backend, at::Tensor const& tensor) {
    std::vector<at::Tensor> tensors{tensor};
    return backend.recv(tensors, 1 - backend.getRank(), 0);
  }

  /// Uses each Work of `start` from four threads at the same time: wait(), a callback, polling, and this one. `check`
  /// runs when all are done.
  static void race(std::function<WorkPtr()> const& start, std::function<void()> const& check) {
    WorkPtr work;
    std::atomic<int> called = 0;
    std::barrier begin(4);
    std::barrier end(4);
    auto const repeat = [&](std::function<void(WorkPtr)> const& use) {
      for (int round = 0; round < kRounds; ++round) {
        begin.arrive_and_wait();
        use(work);
        end.arrive_and_wait();
      }
    };
    std::vector<std::jthread> threads;
    threads.emplace_back(repeat, [](WorkPtr const& each) { each->wait(); });
    threads.emplace_back(repeat, [&](WorkPtr const& each) {
      each->getFuture()->addCallback([&called](c10::ivalue::Future&) { ++called; });
    });
    threads.emplace_back(repeat, [](WorkPtr const& each) {
      while (!each->isCompleted()) std::this_thread::yield();
      EXPECT_TRUE(each->isSuccess());
      EXPECT_FALSE(each->result().empty());
      each->getFuture()->wait();
    });
    for (int round = 0; round < kRounds; ++round) {
      work = start();
      begin.arrive_and_wait();
      end.arrive_and_wait();
      check();
    }
    threads.clear();
    work = nullptr;
    while (called < kRounds) std::this_thread::yield();
  }

  std::atomic<bool> may_make_ = true;  ///< The reducing backends wait for it before they are made.
};

TEST_P(BackendThreadsTest, ThreadsMayWaitAndAskForTheFutureOfOneExchangeAtOnce) {
  run_ranks([](BackendPtr const& backend) {
    auto output = at::empty({kSize});
    race([&] { return exchange(*backend, output); }, [&] { EXPECT_EQ(output[1].item<float>(), 1); });
    backend->shutdown();
  });
}

TEST_P(BackendThreadsTest, ThreadsMayWaitAndAskForTheFutureOfOneReductionAtOnce) {
  run_ranks([](BackendPtr const& backend) {
    at::Tensor tensor;
    race(
        [&] {
          tensor = at::full({4}, 1.0F);
          return reduce(*backend, tensor);
        },
        [&] { EXPECT_EQ(tensor[3].item<float>(), kSize); });
  });
}

TEST_P(BackendThreadsTest, ReductionsMayStartWhileTheirBackendIsMade) {
  run_ranks([](BackendPtr const& backend) {
    std::vector<at::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(at::full({4}, 1.0F));
      works.push_back(reduce(*backend, tensors.back()));
      backend->setTimeout(milliseconds(60000 + i));
    }
    for (auto const& work : works) work->wait();
    EXPECT_EQ(tensors.back()[0].item<float>(), kSize);
    works.push_back(reduce(*backend, tensors.back()));  // Dropped together with the backend.
  });
}

TEST_P(BackendThreadsTest, ATimeoutReachesABackendThatIsStillBeingMade) {
  may_make_ = false;
  run_ranks([this](BackendPtr const& backend) {
    if (backend->getRank() != 0) return;
    auto const work = reduce(*backend, at::full({4}, 1.0F));
    backend->setTimeout(milliseconds(50));
    may_make_ = true;
    may_make_.notify_all();
    EXPECT_THROW(work->wait(), c10::DistBackendError);
  });
}

TEST_P(BackendThreadsTest, WorksMayBeDroppedByAnyThreadAtAnyTime) {
  run_ranks([](BackendPtr const& backend) {
    std::atomic<int> called = 0;
    {
      std::vector<std::jthread> threads;
      for (int round = 0; round < kRounds; ++round) {
        auto output = at::empty({kSize});
        auto work = exchange(*backend, output);
        auto future = work->getFuture();
        if (threads.size() == 4) threads.clear();
        threads.emplace_back([&called, future = std::move(future)] {
          future->addCallback([&called](c10::ivalue::Future&) { ++called; });
        });
        threads.emplace_back([work = std::move(work)]() mutable { work.reset(); });
        exchange(*backend, output).reset();
      }
    }
    auto output = at::empty({kSize});
    exchange(*backend, output)->wait();
    while (called < kRounds) std::this_thread::yield();
  });
}

TEST_P(BackendThreadsTest, AnAbortEndsAllThatOtherThreadsWaitFor) {
  std::latch started(kSize);  // Rank 0 aborts after both ranks have started: a later start fails by itself.
  run_ranks([&](BackendPtr const& backend) {
    auto const tensor = at::empty({4});
    auto const work = receive(*backend, tensor);
    started.count_down();
    std::atomic<int> failed = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] { EXPECT_THROW(work->wait(), c10::DistBackendError); });
      threads.emplace_back([&] {
        work->getFuture()->addCallback([&failed](c10::ivalue::Future& future) { failed += future.hasError() ? 1 : 0; });
      });
      threads.emplace_back([&] {
        while (!work->isCompleted()) std::this_thread::yield();
        EXPECT_FALSE(work->isSuccess());
        EXPECT_NE(work->exception(), nullptr);
      });
    }
    if (backend->getRank() == 0) {
      started.wait();
      backend->abort();
    }
    threads.clear();
    while (failed < 2) std::this_thread::yield();
    EXPECT_NE(backend->getError(), c10d::ErrorType::SUCCESS);
  });
}

TEST_P(BackendThreadsTest, ThreadsThatUseABackendLearnThatItWasShutDown) {
  run_ranks([](BackendPtr const& backend) {
    std::atomic<int> num_ended = 0;
    auto const use = [&](auto const& call) {
      try {
        for (;;) call();
      } catch (c10::DistBackendError const&) {
        ++num_ended;
      }
    };
    std::vector<std::jthread> threads;
    threads.emplace_back(use, [&] {
      auto const tensor = at::empty({4});
      receive(*backend, tensor).reset();
      std::this_thread::sleep_for(milliseconds(1));
    });
    threads.emplace_back(use, [&] { backend->setTimeout(milliseconds(60000)); });
    threads.emplace_back(use, [&] { static_cast<void>(backend->getError()); });
    threads.emplace_back(use, [&] { static_cast<void>(backend->handle()->group().monitor().stats()); });
    std::this_thread::sleep_for(milliseconds(20));
    backend->shutdown();
    threads.clear();
    EXPECT_EQ(num_ended, 4);
  });
}

TEST_P(BackendThreadsTest, CallsBetweenStartAndEndOfCoalescingBelongToTheirThread) {
  run_ranks([](BackendPtr const& backend) {
    backend->startCoalescing();
    auto output = at::empty({kSize});
    auto const reduced = at::full({2}, 1.0F);
    exchange(*backend, output);
    reduce(*backend, reduced);
    auto const work = backend->endCoalescing();
    std::jthread const other([&] { work->getFuture()->wait(); });
    work->wait();
    EXPECT_EQ(reduced[0].item<float>(), kSize);
  });
}

// This test must be the last one, since a process ends only once.
TEST_P(BackendThreadsTest, TheEndOfTheProgramEndsGroupsAndThreadsWhoeverHoldsThem) {
  if (GetParam() != comm::Transport::kShm) GTEST_SKIP() << "a process ends once";
  std::mutex mutex;
  std::vector<WorkPtr> kept;
  std::vector<BackendPtr> backends;
  std::atomic<int> failed = 0;
  run_ranks([&](BackendPtr const& backend) {
    auto const tensor = at::full({4}, 1.0F);
    reduce(*backend, tensor)->wait();
    std::lock_guard const lock(mutex);
    backends.push_back(backend);
    for (int i = 0; i < 3; ++i) {
      kept.push_back(receive(*backend, at::empty({4})));
      kept.back()->getFuture()->addCallback([&](c10::ivalue::Future& future) { failed += future.hasError() ? 1 : 0; });
    }
  });
  std::jthread const waiter([&] { EXPECT_THROW(kept[0]->wait(), c10::DistBackendError); });
  run_exit_hooks(milliseconds(0), std::chrono::seconds(10));  // No time for messages, 10 s for threads to end.
  EXPECT_EQ(failed, 6) << "callbacks have run";
  EXPECT_THROW(static_cast<void>(receive(*backends[0], at::empty({4}))), c10::DistBackendError);
}

INSTANTIATE_TEST_SUITE_P(Engines, BackendThreadsTest, testing::Values(comm::Transport::kInproc, comm::Transport::kShm),
                         [](auto const& tested) {
                           return std::string(tested.param == comm::Transport::kShm ? "shm" : "inproc");
                         });

}  // namespace
}  // namespace headway::c10d_backend
