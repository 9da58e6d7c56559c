// Threads of the extension, without Python state.
#pragma once
#include <pthread.h>

namespace stepscope {

// Returns an error number, or 0. The thread blocks all signals.
int start_hidden_thread(pthread_t& thread, void* argument, void* (*entry)(void*));

}  // namespace stepscope
