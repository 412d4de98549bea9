// Yama's level 1 lets a process's memory be read by its ancestors only, unless the process names a tracer; ranks are
// mostly siblings.
//
// Idea: Yama keeps one tracer of each process, and lets that process and all its descendants read. So a rank names the
// parent that it has in common with its peers, as under torchrun, mpirun or srun; it lets every process of its user
// read only if there is none. The setting is of the whole process while groups come and go, so it follows what all
// groups that exist ask for, and nobody is named once the last of them has ended.
//
// Example: group A has siblings only and names parent 100. Group B, with a rank that somebody else started, needs every
// process: any. When B ends: 100 again. When A ends: nobody.
//
// Another library of the process that names a tracer, such as a crash handler's, shares this one setting.
// Source: Linux, Documentation/admin-guide/LSM/Yama.rst; prctl(2), PR_SET_PTRACER.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <utility>

namespace headway::comm::shm {

/// The calls of the kernel that matter here, so that tests can do without Yama.
class TracerCalls {
 public:
  static constexpr unsigned long kNobody = 0;
  static constexpr unsigned long kAnyProcess = ~0UL;  ///< PR_SET_PTRACER_ANY.

  virtual ~TracerCalls() = default;
  /// Yama's level, 0 to 3; -1: the kernel has none.
  [[nodiscard]] virtual int yama_level() = 0;
  /// Parent of a process; 0 or less where it cannot be told.
  [[nodiscard]] virtual int parent_of(int pid) = 0;
  [[nodiscard]] virtual int own_parent() = 0;
  virtual void set_tracer(unsigned long tracer) = 0;
};

/// Lets peers read this process's memory while it lives; gives that up when it ends.
class ReadPermission {
 public:
  /// The permissions of one process. Thread-safe; outlives them.
  class Process {
   public:
    explicit Process(TracerCalls& calls) : calls_(calls) {}

   private:
    friend class ReadPermission;
    void add(unsigned long tracer);
    void remove(unsigned long tracer) noexcept;
    void apply();

    TracerCalls& calls_;
    std::mutex mutex_;
    std::map<unsigned long, int> wanted_;  ///< Tracer to number of permissions.
    unsigned long tracer_ = TracerCalls::kNobody;
  };
  /// That of the calling process. Never destroyed: a group may outlive the statics.
  static Process& of_this_process();

  ReadPermission() = default;
  /// For `peers`, by process id as this process sees them. Sets nothing unless Yama's level is 1.
  ReadPermission(Process& process, std::span<int const> peers);
  ReadPermission(ReadPermission&& other) noexcept { *this = std::move(other); }
  ReadPermission& operator=(ReadPermission&& other) noexcept {
    std::swap(process_, other.process_);
    std::swap(tracer_, other.tracer_);
    return *this;
  }
  ~ReadPermission() {
    if (process_ != nullptr) process_->remove(tracer_);
  }

 private:
  Process* process_ = nullptr;
  unsigned long tracer_ = TracerCalls::kNobody;
};

}  // namespace headway::comm::shm
