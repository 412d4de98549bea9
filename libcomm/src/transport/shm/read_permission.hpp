// SPDX-License-Identifier: Apache-2.0

// Permission for peers to read this process's memory (process_vm_readv) under the Yama security module.
//
// Problem: at Yama's level 1 only the ancestors of a process may read its memory, unless it names a tracer. Ranks are
// mostly siblings.
//
// Idea: Yama keeps one tracer per process, and lets that process and all its descendants read. A rank names the parent
// that it shares with all its peers, as under torchrun, mpirun or srun. Without a common parent it admits every process
// of its user. The setting belongs to the whole process, while groups come and go. So it is the union of the requests
// of all live groups, and is cleared with the last of them.
//
// Example: group A has only siblings and names parent 100. Group B has a rank that somebody else started and needs any
// process: the setting becomes "any". When B ends it is 100 again; when A ends, nobody.
//
// fork(): the kernel's setting is not inherited, so a child starts with none. A permission of the parent has no effect
// in the child, and ends there without one.
//
// Limits: another library of the process that names a tracer, such as a crash handler, shares this one setting.
// Complexity: one prctl() when the setting changes; one read of /proc/PID/stat per peer and group.
// Source: Linux, Documentation/admin-guide/LSM/Yama.rst; prctl(2), PR_SET_PTRACER.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <utility>

namespace headway::comm::shm {

/// Kernel calls of this file. Tests replace them to run without Yama.
class TracerCalls {
 public:
  static constexpr unsigned long kNobody = 0;
  static constexpr unsigned long kAnyProcess = ~0UL;  ///< PR_SET_PTRACER_ANY.

  virtual ~TracerCalls() = default;
  /// Yama's level, 0 to 3, or -1 if the kernel has no Yama.
  [[nodiscard]] virtual int yama_level() = 0;
  /// Parent of process `pid`; 0 or less if unknown.
  [[nodiscard]] virtual int parent_of(int pid) = 0;
  [[nodiscard]] virtual int own_pid() = 0;
  [[nodiscard]] virtual int own_parent() = 0;
  virtual void set_tracer(unsigned long tracer) = 0;
};

/// Lets peers read this process's memory for the lifetime of this object.
class ReadPermission {
 public:
  /// Permissions of one process, merged. Thread-safe. Must outlive every ReadPermission made from it.
  class Process {
   public:
    explicit Process(TracerCalls& calls) : calls_(calls), pid_(calls.own_pid()) {}

   private:
    friend class ReadPermission;
    /// @returns the calling process.
    int add(unsigned long tracer);
    /// Undoes an add() of process `pid`; has no effect in another process.
    void remove(unsigned long tracer, int pid) noexcept;
    void apply();

    TracerCalls& calls_;
    std::mutex mutex_;
    int pid_;                              ///< The process to which the members below belong.
    std::map<unsigned long, int> wanted_;  ///< Maps each tracer to its number of live permissions.
    unsigned long tracer_ = TracerCalls::kNobody;
  };
  /// The instance for the calling process. Never destroyed: a group may outlive static objects.
  static Process& of_this_process();

  ReadPermission() = default;
  /// Lets `peers`, process ids in this process's namespace, read its memory. Has no effect unless Yama's level is 1.
  ReadPermission(Process& process, std::span<int const> peers);
  ReadPermission(ReadPermission&& other) noexcept { *this = std::move(other); }
  ReadPermission& operator=(ReadPermission&& other) noexcept {
    std::swap(process_, other.process_);
    std::swap(tracer_, other.tracer_);
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~ReadPermission() {
    if (process_ != nullptr) process_->remove(tracer_, pid_);
  }

 private:
  Process* process_ = nullptr;
  unsigned long tracer_ = TracerCalls::kNobody;
  int pid_ = -1;
};

}  // namespace headway::comm::shm
