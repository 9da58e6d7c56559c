// The shim between a framework and whoever wants to know what it does (DEEPCONTEXT 4.1, DLMONITOR).
//
// A framework's adapter tells: `begin` and `end` of collector.h around each operator, and `tell` for
// the rest. A tool watches a domain and asks, from within its callback or anywhere else, for the
// call path of its thread. Neither knows the other; pytorch.cpp is one adapter, and adapters in
// Python (for JAX, say) call the same functions through the extension.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tree.h"

#pragma GCC visibility push(default)  // a tool links with the extension
namespace stepscope {

enum class Domain : uint32_t { op, compilation, memory, device, count };
enum class Phase : uint32_t { begin, end, allocate, release, activity };

struct Happening {
  Domain domain;
  Phase phase;
  const char* name;       // operator, compiled function, device, kernel
  uint64_t address = 0;   // of memory
  int64_t bytes = 0;      // of memory
  int64_t nanoseconds = 0;  // of a device activity, its length
  NodeId context = kRoot;   // of a device activity, who launched it; else ask `call_path`
};

using Callback = void (*)(const Happening&, void* argument);

// Returns a number to unwatch with. Callbacks run in the thread where it happens.
int watch(Domain domain, Callback callback, void* argument);
void unwatch(int number);

bool is_watched(Domain domain);
void tell(const Happening& happening);

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
