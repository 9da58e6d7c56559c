#include "hidden_thread.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <initializer_list>

namespace stepscope {

int start_hidden_thread(pthread_t& thread, void* argument, void* (*entry)(void*)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int error = pthread_create(&thread, nullptr, entry, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!error) pthread_setname_np(thread, "stepscope-own");  // as in fork_warnings.py
  return error;
}

void ask_for_short_delays() {
  prctl(PR_SET_TIMERSLACK, 1);
  struct {
    uint32_t size = sizeof(*this), policy = 0;  // SCHED_OTHER
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t slice_ns = 100000, deadline = 0, period = 0;
  } attributes;
  for (int nice : {-10, 0}) {  // negative values need a privilege
    attributes.nice = nice;
    if (!syscall(SYS_sched_setattr, 0, &attributes, 0)) return;
  }
}

}  // namespace stepscope
