#include "hidden_thread.h"

#include <signal.h>

namespace stepscope {

int start_hidden_thread(pthread_t& thread, void* argument, void* (*entry)(void*)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int error = pthread_create(&thread, nullptr, entry, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!error) pthread_setname_np(thread, "stepscope");
  return error;
}

}  // namespace stepscope
