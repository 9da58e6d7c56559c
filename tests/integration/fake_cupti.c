/* A CUPTI of one thread and no device: launches are told to the subscriber as the real one tells
 * them, and flushing delivers their records, written here by the headers' layout, in a buffer that
 * the subscriber provides, from another thread. Samples of instructions are as in the headers, too:
 * what a launch leaves is decoded when the next one ends, or when sampling ends. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*callback_t)(void*, uint32_t, uint32_t, const void*);
typedef void (*request_t)(uint8_t**, size_t*, size_t*);
typedef void (*complete_t)(void*, uint32_t, uint8_t*, size_t, size_t);

struct call_data { /* CUpti_CallbackData */
  uint32_t site;
  const char* function;
  const void *parameters, *returned;
  const char* symbol;
  void* context;
  uint32_t context_uid;
  uint64_t* data;
  uint32_t correlation;
};

#define RECORD 160 /* sizeof(CUpti_ActivityKernel9) and of whatever is smaller */
static uint8_t records[4096][RECORD];
static size_t count = 0;
static uint32_t correlation = 100;
static uint32_t kernel_kind = 10;
static int cuda_context; /* its address is the context */
static callback_t callback;
static request_t request;
static complete_t complete;

static int result(const char* variable) {
  const char* text = getenv(variable);
  return text ? atoi(text) : 0;
}

int cuptiSubscribe(void** subscriber, callback_t function, void* data) {
  (void)data;
  *subscriber = &records;
  callback = function;
  return result("FAKE_CUPTI_SUBSCRIBE");
}
int cuptiUnsubscribe(void* subscriber) { callback = NULL; return subscriber != &records; }
int cuptiEnableCallback(uint32_t on, void* s, uint32_t d, uint32_t id) {
  (void)on, (void)s, (void)d;
  return id > 500 ? 1 : 0; /* an older version does not know them all */
}
int cuptiActivityRegisterCallbacks(request_t r, complete_t c) {
  request = r;
  complete = c;
  return 0;
}
int cuptiActivityEnable(uint32_t kind) {
  if (kind == 3 || kind == 10) kernel_kind = kind;
  return result("FAKE_CUPTI_ENABLE");
}
int cuptiActivityDisable(uint32_t kind) { (void)kind; return 0; }
int cuptiGetResultString(int code, const char** text) {
  (void)code;
  *text = "CUPTI_ERROR_FAKE";
  return 0;
}

int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, uint8_t** record) {
  *record = *record ? *record + RECORD : buffer;
  return *record + RECORD <= buffer + valid ? 0 : 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED */
}

static void* deliver(void* nothing) {
  uint8_t* buffer;
  size_t size, most;
  request(&buffer, &size, &most);
  memcpy(buffer, records, count * RECORD);
  complete(NULL, 0, buffer, size, count * RECORD);
  count = 0;
  return nothing;
}
int cuptiActivityFlushAll(uint32_t flag) {
  pthread_t thread;
  (void)flag;
  if (!count) return 0;
  pthread_create(&thread, NULL, deliver, NULL);
  pthread_join(thread, NULL);
  return 0;
}

#ifdef WITHOUT_SAMPLES
static void sample(const char* kernel) { (void)kernel; }
#else
#include "fake_samples.h"
#endif

static void tell_with(uint32_t domain, uint32_t site, const char* function, const void* parameters) {
  struct call_data data = {0};
  data.parameters = parameters;
  data.site = site;
  data.function = function;
  data.correlation = correlation;
  data.context = domain == 1 ? &cuda_context : NULL; /* the first call of the runtime makes it */
  if (callback) callback(NULL, domain, 211, &data);
}
static void tell(uint32_t domain, uint32_t site, const char* function) {
  tell_with(domain, site, function, NULL);
}
static void put(size_t at, const void* value, size_t size) { memcpy(records[count] + at, value, size); }
static void put32(size_t at, uint32_t value) { put(at, &value, 4); }
static void put64(size_t at, uint64_t value) { put(at, &value, 8); }

struct launch_parameters { /* cudaLaunchKernel_v7000_params */
  const void* function;
  uint32_t grid[3], block[3];
  void** values;
  size_t shared;
  const void* stream;
};
struct copy_parameters { /* cudaMemcpyAsync_v3020_params */
  const void *to, *from;
  size_t bytes;
  int32_t kind;
  const void* stream;
};

/* As cudaLaunchKernel, which calls cuLaunchKernel. */
void fake_launch(const char* kernel, uint64_t begin, uint64_t end) {
  uint16_t registers = 40;
  correlation++;
  struct launch_parameters launch = {0, {6, 2, 1}, {128, 1, 1}, 0, 1024, (void*)7};
  tell_with(2, 0, "cudaLaunchKernel", &launch);
  tell(1, 0, "cuLaunchKernel");
  memset(records[count], 0xee, RECORD);
  put32(0, kernel_kind), put(6, &registers, 2), put32(52, 6), put32(56, 2), put32(60, 1), put32(64, 128);
  put32(68, 1), put32(72, 1), put32(76, 0), put32(80, 1024), put64(16, begin), put64(24, end), put32(92, correlation);
  put(104, &kernel, 8);
  count++;
  sample(kernel);
  tell(1, 1, "cuLaunchKernel");
  tell(2, 1, "cudaLaunchKernel");
}

/* As cudaMemcpyAsync from pageable memory to the device. */
void fake_copy(uint64_t bytes, uint64_t begin, uint64_t end) {
  uint8_t kinds[3] = {1, 1, 3};
  correlation++;
  struct copy_parameters copy = {0, 0, bytes, 1, 0};
  tell_with(2, 0, "cudaMemcpyAsync", &copy);
  memset(records[count], 0xee, RECORD);
  put32(0, 1), put(4, kinds, 3), put64(8, bytes), put64(16, begin), put64(24, end);
  put32(44, correlation);
  count++;
  tell(2, 1, "cudaMemcpyAsync");
}

/* A record of work that nobody told us about. */
void fake_stray(void) {
  const char* kernel = "stray";
  memset(records[count], 0xee, RECORD);
  put32(0, 10), put64(16, 1), put64(24, 2), put32(92, 7);
  put(104, &kernel, 8);
  count++;
}
