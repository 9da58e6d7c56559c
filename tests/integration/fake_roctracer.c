/* A roctracer without a device: a launch is told by its callback, and its record, in the layout of
 * prof_protocol.h, is handed over when the pool is flushed. */
#include <stdint.h>
#include <string.h>

typedef void (*call_t)(uint32_t, uint32_t, const void*, void*);

struct properties {
  uint32_t mode;
  size_t buffer_size;
  void *alloc_fun, *alloc_arg;
  void (*buffer)(const char*, const char*, void*);
  void* buffer_arg;
};
struct call_data {
  uint64_t correlation;
  uint32_t phase;
};
struct record {
  uint32_t domain, kind, op;
  uint64_t correlation, begin, end;
  int device;
  uint64_t queue;
  const char* name;
};

static struct properties pool;
static call_t callback;
static struct record records[1024];
static size_t count = 0;
static uint64_t correlation = 1;

int roctracer_open_pool_expl(const struct properties* wanted, void** opened) {
  pool = *wanted;
  *opened = &pool;
  return 0;
}
int roctracer_close_pool_expl(void* p) { return p != &pool; }
int roctracer_flush_activity_expl(void* p) {
  if (count) pool.buffer((char*)records, (char*)(records + count), pool.buffer_arg);
  count = 0;
  return p != &pool;
}
int roctracer_enable_domain_activity_expl(uint32_t domain, void* p) { return domain != 2 || p != &pool; }
int roctracer_disable_domain_activity(uint32_t domain) { return domain != 2; }
int roctracer_enable_domain_callback(uint32_t domain, call_t c, void* arg) {
  (void)arg;
  callback = c;
  return domain != 3;
}
int roctracer_disable_domain_callback(uint32_t domain) {
  callback = NULL;
  return domain != 3;
}
const char* roctracer_op_string(uint32_t domain, uint32_t op, uint32_t kind) {
  (void)domain, (void)op, (void)kind;
  return "hipLaunchKernel";
}
const char* roctracer_error_string(void) { return "fake"; }

void fake_launch(const char* kernel, uint64_t begin, uint64_t end) {
  struct call_data data = {++correlation, 0};
  struct record record = {2, 0, 0, correlation, begin, end, 0, 0, kernel};
  if (callback) callback(3, 1, &data, NULL);
  records[count++] = record;
  data.phase = 1;
  if (callback) callback(3, 1, &data, NULL);
}
void fake_copy(uint64_t bytes, uint64_t begin, uint64_t end) {
  fake_launch((const char*)bytes, begin, end);
  records[count - 1].op = 1;
}
void fake_stray(void) {
  struct record barrier = {2, 0, 2, 9999, 1, 2, 0, 0, NULL};
  records[count++] = barrier;
}
