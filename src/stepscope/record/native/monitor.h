// The shim between frameworks and tools (DEEPCONTEXT 4.1, DLMONITOR).
//
// A framework's adapter calls `begin` and `end` (collector.h) around each operator, and `emit` for
// other events. A tool watches a domain and can query the call path of its thread, in its callback or
// anywhere else. pytorch.cpp is one adapter; adapters in Python (for example for JAX) call the same
// functions through the extension.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tree.h"

#pragma GCC visibility push(default)  // a tool links with the extension
namespace stepscope {

enum class Domain : uint32_t { op, compilation, memory, device, tensors, count };
enum class Phase : uint32_t { begin, end, allocate, release, activity };

struct MonitorEvent {
  Domain domain;
  Phase phase;
  const char* name;       // operator, compiled function, device, kernel
  uint64_t address = 0;   // memory events
  int64_t bytes = 0;      // memory events
  int64_t nanoseconds = 0;  // duration of a device activity
  NodeId context = kRoot;   // of a device activity, its launching context; else use `call_path`
  const char* details = "";  // JSON: tensors of an operator, or arguments of a call of the driver
};

using Callback = void (*)(const MonitorEvent&, void* argument);

// Returns a number for `unwatch`. Callbacks run in the thread of their event.
int watch(Domain domain, Callback callback, void* argument);
void unwatch(int number);

bool is_watched(Domain domain);
void emit(const MonitorEvent& event);

// A frame of the five kinds, as in the file.
struct PathFrame {
  Kind kind;
  bool is_backward;
  std::string name, file;
  uint32_t line;
};
// The frames of this thread's innermost context, or of `context`, outermost first, of the kinds in
// `sources` (keys.h).
std::vector<PathFrame> call_path(uint32_t sources);
std::vector<PathFrame> call_path(uint32_t sources, NodeId context);

}  // namespace stepscope
#pragma GCC visibility pop
