// NVIDIA's adapter: CUPTI, loaded at run time.
//
// The build does not need CUPTI. The layouts of records are those of its headers; the fields read
// here have the same offsets in CUDA 12 (12.8) and CUDA 13 (13.0), and records only grow at their
// end.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cupti.h"
#include "device.h"

namespace stepscope {
namespace {

using Result = CuptiResult;
enum Kind : uint32_t { kMemcpy = 1, kMemset = 2, kKernel = 3, kConcurrentKernel = 10, kPeerCopy = 22 };
enum Domain : uint32_t { kDriver = 1, kRuntime = 2, kResource = 3 };
// CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, CUPTI_CBID_RESOURCE_MODULE_LOADED
constexpr uint32_t kContextEnds = 2, kModuleLoaded = 6;

using Callback = void (*)(void*, uint32_t domain, uint32_t id, const void* data);
using Request = void (*)(uint8_t** buffer, size_t* size, size_t* records);
using Complete = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);

struct Library {
  void* handle = nullptr;
  Result (*subscribe)(void**, Callback, void*);
  Result (*unsubscribe)(void*);
  Result (*enable_callback)(uint32_t, void*, uint32_t, uint32_t);
  Result (*register_buffers)(Request, Complete);
  Result (*enable)(uint32_t kind);
  Result (*disable)(uint32_t kind);
  Result (*flush)(uint32_t);
  Result (*next)(uint8_t*, size_t, uint8_t**);
  Result (*describe)(Result, const char**);
} cupti;
void* subscriber = nullptr;

// CUptiResult
const std::pair<Result, const char*> kReasons[] = {
    {15, "CUPTI could not start: the driver does not answer"},
    {27, "the device does not support it"},
    {33, "virtual GPUs do not support it"},
    {35, "no permission to profile the device: the administrator can allow it with the driver's "
         "option NVreg_RestrictProfilingToAdminUsers=0, or give the process CAP_SYS_ADMIN"},
    {39, "another profiler of this process uses CUPTI"},
    {40, "no permission to profile the virtual GPU: its host must allow it"},
    {41, "devices in confidential computing do not support it"},
    {43, "MIG slices do not support it"},
    {45, "WSL does not support it"},
};

// CUpti_CallbackData
struct CallData {
  uint32_t site;
  const char* function;
  const void *parameters, *returned;
  const char* symbol;
  void* context;
  uint32_t context_id;
  uint64_t* data;
  uint32_t number;
};
struct ModuleData {  // CUpti_ModuleResourceData
  uint32_t id;
  size_t size;
  const void* cubin;
};
struct ResourceData {  // CUpti_ResourceData
  void *context, *handle;
  const ModuleData* module;
};
// The first fields of CUpti_ActivityKernel4 and later, CUpti_ActivityMemcpy, CUpti_ActivityMemset
struct KernelRecord {
  uint32_t kind;
  uint8_t cache, shared;
  uint16_t registers;
  uint32_t partitioned[2];
  uint64_t begin, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total, number;
  int64_t grid_id;
  const char* name;
};
struct CopyRecord {
  uint32_t kind;
  uint8_t copy, source, target, flags;
  uint64_t bytes, begin, end;
  uint32_t device, context, stream, number;
};
struct PeerCopyRecord {
  uint32_t kind;
  uint8_t copy, source, target, flags;
  uint64_t bytes, begin, end;
  uint32_t device, context, stream, source_device, source_context, target_device, target_context,
      number;
};
struct SetRecord {
  uint32_t kind, value;
  uint64_t bytes, begin, end;
  uint32_t device, context, stream, number;
};
static_assert(offsetof(CallData, number) == 64);
static_assert(offsetof(KernelRecord, number) == 92 && offsetof(KernelRecord, name) == 104);
static_assert(offsetof(CopyRecord, number) == 44 && offsetof(PeerCopyRecord, number) == 60);
static_assert(offsetof(SetRecord, number) == 44);

// -- records

const char* memory_name(uint8_t kind) {
  const char* names[] = {"Unknown", "Pageable", "Pinned", "Device", "Array", "Managed"};
  return kind < 6 ? names[kind] : "Unknown";
}

std::string copy_name(uint8_t copy, uint8_t source, uint8_t target) {
  const char* names[] = {"Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                         "AtoD",    "DtoA", "DtoD", "HtoH", "PtoP"};
  return std::string("Memcpy ") + (copy < 11 ? names[copy] : "Unknown") + " (" +
         memory_name(source) + " -> " + memory_name(target) + ")";
}

uint64_t product(const int32_t (&size)[3]) {
  return uint64_t(size[0]) * uint64_t(size[1]) * uint64_t(size[2]);
}

void take(const uint8_t* record) {
  uint32_t kind;
  memcpy(&kind, record, sizeof kind);
  if (kind == kKernel || kind == kConcurrentKernel) {
    auto* kernel = reinterpret_cast<const KernelRecord*>(record);
    Launch launch = {product(kernel->grid), product(kernel->grid) * product(kernel->block),
                     kernel->registers,
                     uint64_t(kernel->static_shared) + uint64_t(kernel->dynamic_shared)};
    work_done(kernel->number, readable_kernel(kernel->name), "kernel", kernel->begin, kernel->end,
              &launch);
  } else if (kind == kMemcpy) {
    auto* copy = reinterpret_cast<const CopyRecord*>(record);
    work_done(copy->number, copy_name(copy->copy, copy->source, copy->target), "memcpy",
              copy->begin, copy->end);
  } else if (kind == kPeerCopy) {
    auto* copy = reinterpret_cast<const PeerCopyRecord*>(record);
    work_done(copy->number, copy_name(copy->copy, copy->source, copy->target), "memcpy",
              copy->begin, copy->end);
  } else if (kind == kMemset) {
    auto* set = reinterpret_cast<const SetRecord*>(record);
    work_done(set->number, "Memset (Device)", "memset", set->begin, set->end);
  }
}

constexpr size_t kBufferBytes = 4u << 20;

void on_request(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *records = 0;  // as many as fit into the buffer
}

void on_complete(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  uint8_t* record = nullptr;
  while (cupti.next(buffer, valid, &record) == kSuccess) take(record);
  free(buffer);
}

// Arguments of calls, by generated_cuda_runtime_api_meta.h and generated_cuda_meta.h.
struct RuntimeLaunch {
  const void* function;
  uint32_t grid[3], block[3];
  void** values;
  size_t shared;
  const void* stream;
};
struct DriverLaunch {
  const void* function;
  uint32_t grid[3], block[3], shared;
  const void* stream;
};
struct RuntimeCopy {
  const void *to, *from;
  size_t bytes;
  int32_t kind;
};

std::string launch_text(const uint32_t* grid, const uint32_t* block, size_t shared,
                        const void* stream) {
  char text[256];
  snprintf(text, sizeof text,
           "{\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared_bytes\":%zu,\"stream\":%zu}", grid[0],
           grid[1], grid[2], block[0], block[1], block[2], shared, size_t(stream));
  return text;
}

// The arguments of launches and copies as JSON; empty for other calls.
std::string arguments_of(const char* function, const void* parameters) {
  if (!parameters) return "";
  std::string name = function;
  if (!name.rfind("cudaLaunchKernel", 0) && name.rfind("cudaLaunchKernelEx", 0)) {
    auto* launch = static_cast<const RuntimeLaunch*>(parameters);
    return launch_text(launch->grid, launch->block, launch->shared, launch->stream);
  }
  if (!name.rfind("cuLaunchKernel", 0) && name.rfind("cuLaunchKernelEx", 0)) {
    auto* launch = static_cast<const DriverLaunch*>(parameters);
    return launch_text(launch->grid, launch->block, launch->shared, launch->stream);
  }
  if (!name.rfind("cudaMemcpyAsync", 0) || name == "cudaMemcpy" || !name.rfind("cudaMemcpy_", 0)) {
    auto* copy = static_cast<const RuntimeCopy*>(parameters);
    const char* kinds[] = {"HtoH", "HtoD", "DtoH", "DtoD", "by address"};
    return "{\"bytes\":" + std::to_string(copy->bytes) + ",\"kind\":\"" +
           (copy->kind >= 0 && copy->kind < 5 ? kinds[copy->kind] : "unknown") + "\"}";
  }
  return "";
}

void on_resource(uint32_t what, const ResourceData& data) {
  if (what == kContextEnds) leave_context(data.context);
  else if (data.module) module_loaded(data.module->cubin, data.module->size);
}

void on_call(void*, uint32_t domain, uint32_t id, const void* argument) {
  if (domain == kResource) return on_resource(id, *static_cast<const ResourceData*>(argument));
  auto* data = static_cast<const CallData*>(argument);
  if (data->site == 0) {
    call_begins(data->function, data->number, &arguments_of, data->parameters);
    sample_context(data->context);
  } else {
    fetch_samples(data->context);
    call_ends(data->function);
  }
}

// -- the library

// Calls that launch work, copy, wait or allocate (cupti_runtime_cbid.h, cupti_driver_cbid.h).
const uint16_t kRuntimeCalls[] = {13,  20,  22,  31,  41,  44,  49,  51,  126, 131, 137, 161,
                                  165, 211, 213, 214, 225, 269, 270, 272, 284, 285, 311, 312,
                                  373, 375, 430, 431, 505, 506};
const uint16_t kDriverCalls[] = {17,  71,  75,  121, 126, 216, 220, 276, 277, 278, 279, 280, 281,
                                 305, 306, 307, 440, 442, 477, 478, 480, 514, 515, 652, 653};
const uint32_t kKinds[] = {kConcurrentKernel, kKernel, kMemcpy, kMemset, kPeerCopy};

void* open_library() {
  if (const char* chosen = getenv("STEPSCOPE_CUPTI")) return dlopen(chosen, RTLD_NOW);
  const char* names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.0", "libcupti.so"};
  for (const char* name : names)  // prefer the one that PyTorch has loaded, as two conflict
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return handle;
  for (const char* name : names)
    if (void* handle = dlopen(name, RTLD_NOW)) return handle;
  return nullptr;
}

bool resolve_all() {
  return resolve(cupti.subscribe, "cuptiSubscribe") &&
         resolve(cupti.unsubscribe, "cuptiUnsubscribe") &&
         resolve(cupti.enable_callback, "cuptiEnableCallback") &&
         resolve(cupti.register_buffers, "cuptiActivityRegisterCallbacks") &&
         resolve(cupti.enable, "cuptiActivityEnable") &&
         resolve(cupti.disable, "cuptiActivityDisable") &&
         resolve(cupti.flush, "cuptiActivityFlushAll") &&
         resolve(cupti.next, "cuptiActivityGetNextRecord") &&
         resolve(cupti.describe, "cuptiGetResultString");
}

bool is_present() { return getenv("STEPSCOPE_CUPTI") || dlopen("libcuda.so.1", RTLD_LAZY); }

std::string probe() {
  if (!is_present()) return "no driver (libcuda.so.1)";
  if (!cupti.handle) cupti.handle = open_library();
  if (!cupti.handle) return "no CUPTI library (libcupti.so; pip install nvidia-cuda-cupti)";
  return resolve_all() ? "" : "a CUPTI library without the functions needed, older than CUDA 11";
}

void stop() {
  stop_sampling();
  for (uint32_t kind : kKinds) cupti.disable(kind);
  cupti.flush(0);
  if (subscriber) cupti.unsubscribe(subscriber);
  subscriber = nullptr;
}

std::string start(bool stalls) {
  Result result = cupti.subscribe(&subscriber, on_call, nullptr);
  if (result != kSuccess) return cupti_reason("cuptiSubscribe", result);
  result = cupti.register_buffers(on_request, on_complete);
  if (result == kSuccess)
    for (uint32_t kind : kKinds)
      if (kind != (stalls ? kConcurrentKernel : kKernel) && result == kSuccess)
        result = cupti.enable(kind);
  if (result != kSuccess) {
    std::string why = cupti_reason("cuptiActivityEnable", result);
    stop();
    return why;
  }
  // Calls unknown to this version of CUPTI do not occur.
  for (uint32_t call : kRuntimeCalls) cupti.enable_callback(1, subscriber, kRuntime, call);
  for (uint32_t call : kDriverCalls) cupti.enable_callback(1, subscriber, kDriver, call);
  if (stalls) {
    for (uint32_t what : {kContextEnds, kModuleLoaded})
      cupti.enable_callback(1, subscriber, kResource, what);
    start_sampling();
  }
  return "";
}

void flush() { cupti.flush(0); }

}  // namespace

void* cupti_library() { return cupti.handle; }

std::string cupti_reason(const char* what, CuptiResult result) {
  for (auto& [code, sentence] : kReasons)
    if (code == result) return sentence;
  const char* text = nullptr;
  if (cupti.describe(result, &text) != kSuccess || !text) text = "unknown error";
  return std::string(what) + " failed: " + text + " (" + std::to_string(result) + ")";
}

const Vendor kNvidia{"NVIDIA", is_present, probe, why_no_sampling, start, flush, stop};

}  // namespace stepscope
