#include "safe_memory.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace stepscope {

// The id of this thread, not of the process: the main thread may have ended.
static pid_t own_id() {
  static thread_local pid_t id = pid_t(syscall(SYS_gettid));
  return id;
}

static thread_local pid_t copied_process = 0;
void copy_from_process(int process) { copied_process = process; }

bool copy_pieces(const Piece* pieces, int count) {
  iovec to[kMostPieces], from[kMostPieces];
  size_t size = 0;
  for (int i = 0; i < count; i++) {
    to[i] = {pieces[i].to, pieces[i].size};
    from[i] = {const_cast<void*>(pieces[i].from), pieces[i].size};
    size += pieces[i].size;
  }
  pid_t process = copied_process ? copied_process : own_id();
  return process_vm_readv(process, to, size_t(count), from, size_t(count), 0) == ssize_t(size);
}

std::string why_no_copies() {
  uint64_t value = 42, copy = 0;
  if (copy_memory(&value, &copy, sizeof copy) && copy == value) return "";
  return std::string("the system refuses process_vm_readv (") + strerror(errno) +
         "; a container's seccomp profile may have to allow it)";
}

}  // namespace stepscope
