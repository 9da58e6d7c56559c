// AMD's adapter: roctracer, loaded at run time. Written against its public headers (roctracer.h,
// ext/prof_protocol.h of ROCm 5 and 6).
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "device.h"

namespace stepscope {
namespace {

enum Domain : uint32_t { kOperations = 2, kHip = 3 };
enum Operation : uint32_t { kDispatch = 0, kCopy = 1, kBarrier = 2 };

// activity_record_t
struct Record {
  uint32_t domain, kind, operation;
  uint64_t number, begin, end;
  int device;
  uint64_t queue;
  const char* name;  // for a dispatch; the size for a copy
};
static_assert(offsetof(Record, number) == 16 && offsetof(Record, name) == 56);

// The first fields of hip_api_data_t
struct CallData {
  uint64_t number;
  uint32_t phase;
};

struct Properties {
  uint32_t mode;
  size_t buffer_bytes;
  void* allocate;
  void* allocate_argument;
  void (*on_buffer)(const char* begin, const char* end, void* argument);
  void* argument;
};

struct Library {
  void* handle = nullptr;
  int (*open_pool)(const Properties*, void**);
  int (*close_pool)(void*);
  int (*flush)(void*);
  int (*enable_activity)(uint32_t domain, void* pool);
  int (*disable_activity)(uint32_t domain);
  int (*enable_callback)(uint32_t domain, void (*)(uint32_t, uint32_t, const void*, void*), void*);
  int (*disable_callback)(uint32_t domain);
  const char* (*call_name)(uint32_t domain, uint32_t call, uint32_t kind);
  const char* (*error)();
} roctracer;
void* pool = nullptr;

void on_call(uint32_t domain, uint32_t call, const void* argument, void*) {
  auto* data = static_cast<const CallData*>(argument);
  if (data->phase == 0) call_begins(roctracer.call_name(domain, call, 0), data->number);
  else call_ends(roctracer.call_name(domain, call, 0));
}

void on_buffer(const char* begin, const char* end, void*) {
  auto* last = reinterpret_cast<const Record*>(end);
  for (auto* record = reinterpret_cast<const Record*>(begin); record < last; record++) {
    if (record->domain != kOperations || record->operation == kBarrier) continue;
    bool is_kernel = record->operation == kDispatch;
    work_done(record->number, is_kernel ? readable_kernel(record->name) : "Memcpy",
              is_kernel ? "kernel" : "memcpy", record->begin, record->end);
  }
}

template <class Function>
bool resolve(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(roctracer.handle, name));
  return function;
}

bool resolve_all() {
  return resolve(roctracer.open_pool, "roctracer_open_pool_expl") &&
         resolve(roctracer.close_pool, "roctracer_close_pool_expl") &&
         resolve(roctracer.flush, "roctracer_flush_activity_expl") &&
         resolve(roctracer.enable_activity, "roctracer_enable_domain_activity_expl") &&
         resolve(roctracer.disable_activity, "roctracer_disable_domain_activity") &&
         resolve(roctracer.enable_callback, "roctracer_enable_domain_callback") &&
         resolve(roctracer.disable_callback, "roctracer_disable_domain_callback") &&
         resolve(roctracer.call_name, "roctracer_op_string") &&
         resolve(roctracer.error, "roctracer_error_string");
}

void* open_library() {
  if (const char* chosen = getenv("STEPSCOPE_ROCTRACER")) return dlopen(chosen, RTLD_NOW);
  for (const char* name : {"libroctracer64.so.4", "libroctracer64.so"})
    if (void* handle = dlopen(name, RTLD_NOW)) return handle;
  return nullptr;
}

bool is_present() {
  return getenv("STEPSCOPE_ROCTRACER") || dlopen("libamdhip64.so", RTLD_LAZY | RTLD_NOLOAD);
}

std::string probe() {
  if (!is_present()) return "no HIP runtime in this process (libamdhip64.so)";
  if (!roctracer.handle) roctracer.handle = open_library();
  if (!roctracer.handle) return "no roctracer library (libroctracer64.so of ROCm)";
  return resolve_all() ? "" : "a roctracer library without the functions needed";
}

std::string probe_stalls() {
  return "roctracer does not sample instructions; rocprofv3 does: docs/guide/contexts.md has the command";
}

std::string start(bool) {
  // In some versions the structure has an additional pointer at its end: leave room for it.
  struct {
    Properties properties;
    void* more[4];
  } wanted{{0, 1u << 20, nullptr, nullptr, on_buffer, nullptr}, {}};
  if (roctracer.open_pool(&wanted.properties, &pool) ||
      roctracer.enable_callback(kHip, on_call, nullptr) ||
      roctracer.enable_activity(kOperations, pool)) {
    const char* text = roctracer.error();
    return std::string("roctracer could not start: ") + (text ? text : "unknown error");
  }
  return "";
}

void flush() { roctracer.flush(pool); }

void stop() {
  roctracer.flush(pool);
  roctracer.disable_callback(kHip);
  roctracer.disable_activity(kOperations);
  roctracer.close_pool(pool);
  pool = nullptr;
}

}  // namespace

const Vendor kAmd{"AMD", is_present, probe, probe_stalls, start, flush, stop};

}  // namespace stepscope
