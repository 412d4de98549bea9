// SPDX-License-Identifier: Apache-2.0

// Permission for peers to read this process's memory; read_permission.hpp has the problem and the idea.

#include "transport/shm/read_permission.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace headway::comm::shm {
namespace {

class KernelTracerCalls final : public TracerCalls {
 public:
  int yama_level() override {
    std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
    int level = -1;
    return file >> level ? level : -1;
  }
  // The line is "pid (name) state parent ..."; the name may hold any character.
  int parent_of(int pid) override {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return -1;
    std::size_t const end_of_name = line.rfind(") ");
    if (end_of_name == std::string::npos || end_of_name + 4 >= line.size()) return -1;
    return std::atoi(line.c_str() + end_of_name + 4);
  }
  int own_pid() override { return getpid(); }
  int own_parent() override { return getppid(); }
  // Errors are ignored: reads then fail, and the peers' probe during setup detects that.
  void set_tracer(unsigned long tracer) override { prctl(PR_SET_PTRACER, tracer, 0, 0, 0); }
};

/// The pid to pass to PR_SET_PTRACER. Yama also admits the descendants of that process, so the common parent admits all
/// peers.
unsigned long tracer_for(TracerCalls& calls, std::span<int const> peers) {
  if (peers.empty() || calls.yama_level() != 1) return TracerCalls::kNobody;
  int const parent = calls.own_parent();
  bool const is_common =
      parent > 0 && std::ranges::all_of(peers, [&](int peer) { return calls.parent_of(peer) == parent; });
  return is_common ? static_cast<unsigned long>(parent) : TracerCalls::kAnyProcess;
}

}  // namespace

ReadPermission::Process& ReadPermission::of_this_process() {
  static auto* const process = new Process(*new KernelTracerCalls);
  return *process;
}

ReadPermission::ReadPermission(Process& process, std::span<int const> peers)
    : tracer_(tracer_for(process.calls_, peers)) {
  if (tracer_ == TracerCalls::kNobody) return;
  pid_ = process.add(tracer_);
  process_ = &process;
}

int ReadPermission::Process::add(unsigned long tracer) {
  std::lock_guard const lock(mutex_);
  if (int const pid = calls_.own_pid(); pid != pid_) {  // After fork(): the kernel has no setting for the child.
    wanted_.clear();
    tracer_ = TracerCalls::kNobody;
    pid_ = pid;
  }
  ++wanted_[tracer];
  apply();
  return pid_;
}

void ReadPermission::Process::remove(unsigned long tracer, int pid) noexcept {
  if (pid != calls_.own_pid()) return;  // Before the lock, which another thread of the parent may have held at fork().
  std::lock_guard const lock(mutex_);
  auto const found = wanted_.find(tracer);
  if (--found->second == 0) wanted_.erase(found);
  apply();
}

void ReadPermission::Process::apply() {
  unsigned long tracer = TracerCalls::kNobody;
  if (wanted_.size() == 1) tracer = wanted_.begin()->first;
  // The kernel keeps one tracer per process. Two parents are wanted if this process got a new one between two groups.
  if (wanted_.size() > 1) tracer = TracerCalls::kAnyProcess;
  if (tracer != tracer_) calls_.set_tracer(tracer);
  tracer_ = tracer;
}

}  // namespace headway::comm::shm
