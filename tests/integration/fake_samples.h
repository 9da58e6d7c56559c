/* The PC sampling of the CUPTI that stands in. Instructions beyond three are as the first. */
#include <stdio.h>

struct stall_count { /* CUpti_PCSamplingStallReason */
  uint32_t reason, samples;
};
struct record { /* CUpti_PCSamplingPCData */
  size_t size;
  uint64_t cubin, offset;
  uint32_t function, pad;
  const char* name;
  size_t stalls;
  struct stall_count* stall;
  uint32_t correlation;
} __attribute__((packed, aligned(8)));
struct buffer { /* CUpti_PCSamplingData */
  size_t size, most;
  uint64_t total, dropped;
  size_t records, remaining;
  uint64_t range;
  struct record* record;
  uint64_t foreign;
  uint8_t full;
} __attribute__((packed, aligned(8)));
struct attribute { /* CUpti_PCSamplingConfigurationInfo */
  uint32_t type, status;
  union {
    uint64_t data[3];
    uint32_t number;
    struct buffer* buffer;
  };
};
struct params { /* of cuptiPCSampling… */
  size_t size;
  void *none, *context;
  union {
    struct buffer* buffer;
    size_t* count_to;
    size_t count;
  };
  union {
    struct attribute* attribute;
    uint32_t* index;
  };
  char** name;
};

#define PREFIX "smsp__pcsamp_warps_issue_stalled_"
static const char* names[] = {PREFIX "long_scoreboard", PREFIX "long_scoreboard_not_issued",
                              PREFIX "imc_miss", PREFIX "selected"};
#define REASONS 4
static size_t instructions(void) {
  int chosen = result("FAKE_CUPTI_INSTRUCTIONS");
  return chosen ? (size_t)chosen : 3;
}
static const struct stall_count sampled[3][2] = {
    {{10, 6}, {11, 5}}, {{12, 3}, {10, 1}}, {{13, 2}, {0, 0}}};

static struct buffer* decoded;
static int is_on, is_configured;
#define PENDING 4096
static const char* pending[PENDING]; /* kernels whose samples are not fetched */
static uint32_t pending_launch[PENDING];
static size_t first, ready, last;

static int is_ours(const struct params* params, size_t size) {
  return params->size == size && !params->none && params->context == &cuda_context;
}
static void sample(const char* kernel) {
  if (!is_configured) return;
  ready = last; /* those before this one */
  pending[last % PENDING] = kernel, pending_launch[last % PENDING] = correlation, last++;
  decoded->records = instructions() * (ready - first);
}

int cuptiGetVersion(uint32_t* version) {
  *version = result("FAKE_CUPTI_VERSION") ? (uint32_t)result("FAKE_CUPTI_VERSION") : 22;
  return 0;
}
int cuptiProfilerInitialize(struct params* params) { return params->size == 16 ? 0 : 1; }
int cuptiPCSamplingEnable(struct params* params) {
  if (!is_ours(params, 24)) return 1;
  is_on = !result("FAKE_CUPTI_SAMPLING");
  return result("FAKE_CUPTI_SAMPLING");
}
int cuptiPCSamplingGetNumStallReasons(struct params* params) {
  if (!is_on || !is_ours(params, 32)) return 1;
  *params->count_to = REASONS;
  return 0;
}
int cuptiPCSamplingGetStallReasons(struct params* params) {
  if (!is_on || !is_ours(params, 48) || params->count != REASONS) return 1;
  for (uint32_t i = 0; i < REASONS; i++) {
    params->index[i] = 10 + i;
    snprintf(params->name[i], 128, "%s", names[i]);
  }
  return 0;
}
int cuptiPCSamplingSetConfigurationAttribute(struct params* params) {
  int is_serialized = 0;
  if (!is_on || !is_ours(params, 40)) return 1;
  for (size_t i = 0; i < params->count; i++) {
    struct attribute* attribute = &params->attribute[i];
    attribute->status = 0;
    if (attribute->type == 5) is_serialized = attribute->number == 2;
    if (attribute->type == 8) decoded = attribute->buffer;
    if (attribute->type == 4) attribute->status = (uint32_t)result("FAKE_CUPTI_BUFFER");
  }
  if (!is_serialized || !decoded || decoded->size != sizeof *decoded) return 7;
  is_configured = 1;
  return 0;
}

/* A module that the driver loads: the cubin of a file. Its code is the sum of its bytes here. */
static char cubin[1 << 16];
struct cubin_code { /* CUpti_GetCubinCrcParams */
  size_t size, cubin_size;
  const void* cubin;
  uint64_t code;
};
int cuptiGetCubinCrc(struct cubin_code* params) {
  if (params->size != 32 || !params->cubin_size) return 1;
  params->code = 0;
  for (size_t i = 0; i < params->cubin_size; i++) params->code += ((const uint8_t*)params->cubin)[i];
  return 0;
}
static uint64_t code_of_loaded;
void fake_load(const char* path) {
  struct { uint32_t id; size_t size; const char* cubin; } module = {1, 0, cubin};
  struct { void *context, *handle, *module; } data = {&cuda_context, 0, &module};
  FILE* file = fopen(path, "rb");
  module.size = fread(cubin, 1, sizeof cubin, file);
  fclose(file);
  struct cubin_code code = {32, module.size, cubin, 0};
  cuptiGetCubinCrc(&code);
  code_of_loaded = code.code;
  if (callback) callback(NULL, 3, 6, &data);
  memset(cubin, 0xee, sizeof cubin); /* valid during the call only */
}

/* Records of the first kernels that are ready, as many as fit. */
static void fill(struct buffer* to, size_t most) {
  size_t taken = 0;
  while (first < ready && taken + instructions() <= most) {
    for (size_t i = 0; i < instructions(); i++) {
      struct record* record = &to->record[taken++];
      record->name = pending[first % PENDING];
      record->correlation = pending_launch[first % PENDING];
      record->offset = 0xd0 + 16 * i;
      record->cubin = code_of_loaded;
      record->stalls = 2;
      memcpy(record->stall, sampled[i < 3 ? i : 0], sizeof sampled[0]);
    }
    first++;
  }
  to->records = taken;
}
int cuptiPCSamplingGetData(struct params* params) {
  struct buffer* to = params->buffer;
  if (!is_on || !is_ours(params, 32) || to == decoded || to->size != sizeof *to) return 1;
  fill(to, 2 * instructions()); /* two kernels at a time */
  to->remaining = instructions() * (ready - first);
  to->dropped = to->records ? 1 : 0;
  to->full = (uint8_t)result("FAKE_CUPTI_FULL");
  decoded->records = to->remaining;
  return to->full ? 8 : 0;
}
int cuptiPCSamplingDisable(struct params* params) {
  if (!is_on || !is_ours(params, 24)) return 1;
  ready = last;
  fill(decoded, decoded->most);
  is_on = is_configured = 0;
  return 0;
}
