// Native threads without Python state.
#pragma once
#include <pthread.h>

namespace stepscope {

// Returns an error number, or 0. The thread blocks all signals.
int start_hidden_thread(pthread_t& thread, void* argument, void* (*entry)(void*));

// Waiting for a processor delays samples, most often until a sampled thread has gone to sleep: a
// thread that samples asks the scheduler to run it soon.
void ask_for_short_delays();

}  // namespace stepscope
