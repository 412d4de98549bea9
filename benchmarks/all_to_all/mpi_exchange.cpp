// SPDX-License-Identifier: Apache-2.0

// The benchmark's exchange with MPI: MPI_Alltoallv at lag 0, where every call completes at once. Above, lag + 1 calls
// are in flight: MPI_Ialltoallv with a queue of requests.

#include "program.hpp"

#include <mpi.h>

#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::benchmarks {

namespace {

void expect_success(int code, char const* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

int as_count(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw std::runtime_error("MPI_Alltoallv counts up to 2^31 - 1 bytes");
  }
  return static_cast<int>(bytes);
}

/// Arguments of MPI_Alltoallv for one direction of one set.
struct Side {
  explicit Side(BlockBuffer const& buffer) : memory(buffer.all().data()) {
    for (std::size_t rank = 0; rank < buffer.block_bytes().size(); ++rank) {
      counts.push_back(as_count(buffer.block_bytes()[rank]));
      displacements.push_back(as_count(buffer.offset(static_cast<int>(rank))));
    }
  }
  std::byte* memory;
  std::vector<int> counts;
  std::vector<int> displacements;
};

/// MPI_Alltoallv at lag 0, completed in start(); MPI_Ialltoallv above.
class MpiExchange final : public Exchange {
 public:
  explicit MpiExchange(int lag) : lag_(lag) {
    expect_success(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
  }
  ~MpiExchange() override { MPI_Comm_free(&communicator_); }
  MpiExchange(MpiExchange const&) = delete;
  MpiExchange& operator=(MpiExchange const&) = delete;

  void use(std::span<CallBuffers> sets) override {
    sends_.clear();
    receives_.clear();
    for (CallBuffers const& set : sets) {
      sends_.emplace_back(set.sends());
      receives_.emplace_back(set.receives());
    }
  }

  void start(std::size_t set) override {
    Side const& send = sends_[set];
    Side const& receive = receives_[set];
    if (lag_ == 0) {
      expect_success(MPI_Alltoallv(send.memory, send.counts.data(), send.displacements.data(), MPI_BYTE, receive.memory,
                                   receive.counts.data(), receive.displacements.data(), MPI_BYTE, communicator_),
                     "MPI_Alltoallv");
      return;
    }
    expect_success(MPI_Ialltoallv(send.memory, send.counts.data(), send.displacements.data(), MPI_BYTE, receive.memory,
                                  receive.counts.data(), receive.displacements.data(), MPI_BYTE, communicator_,
                                  &pending_.emplace_back()),
                   "MPI_Ialltoallv");
  }

  void finish_oldest() override {
    if (lag_ == 0) return;
    expect_success(MPI_Wait(&pending_.front(), MPI_STATUS_IGNORE), "MPI_Wait");
    pending_.pop_front();
  }

  std::uint64_t reserved_bytes() override { return 0; }

 private:
  int lag_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::vector<Side> sends_;
  std::vector<Side> receives_;
  std::deque<MPI_Request> pending_;  ///< Started requests, oldest first.
};

std::unique_ptr<Exchange> connect_mpi(RankContext const& context, int lag, std::string const&) {
  Settings const& settings = context.settings;
  if (settings.slot_bytes || settings.get_bytes || !settings.transport.empty()) {
    throw SettingsError("--slot-bytes, --get-bytes and --transport are for Headway alone");
  }
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != context.identity.rank) throw std::runtime_error("MPI gave this process another rank than its launcher");
  return std::make_unique<MpiExchange>(lag);
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  MPI_Init(&argc, &argv);
  int const status = run_program(argc, argv, {.name = "openmpi", .launch = Launch::kOutside, .connect = connect_mpi});
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
